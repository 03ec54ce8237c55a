//! Records whose values are being copied from a device.

use tch::{Device, Kind, Tensor};

use super::pending::{Content, Pending};
use super::{Histogram, Image, Media, Record};
use crate::error::Result;
use crate::libtorch::Event;
use crate::log::LateScalar;

/// A tensor that is being copied to the host.
#[derive(Debug)]
struct Transfer {
    /// The tensor on the host, valid once `copied` has occurred; without `copied`, the original.
    tensor: Tensor,
    /// The event at the end of the copy.
    copied: Option<Event>,
}

impl Transfer {
    /// Starts copying a CUDA tensor to the host, without synchronizing with the device. A tensor on
    /// another device is copied by [`finish`](Transfer::finish).
    fn begin(tensor: &Tensor) -> Result<Self> {
        let device = tensor.device();
        if !matches!(device, Device::Cuda(_)) {
            return Ok(Transfer { tensor: tensor.shallow_clone(), copied: None });
        }
        // A nonblocking copy goes to pinned memory, which must not be read before the copy has
        // ended.
        let tensor = tensor.f_to_device_(Device::Cpu, tensor.kind(), true, false)?;
        Ok(Transfer { tensor, copied: Some(Event::record(device)?) })
    }

    /// Returns the tensor on the CPU. Waits for the end of the copy, but not for work that was
    /// queued after it.
    fn finish(self) -> Result<Tensor> {
        if let Some(copied) = &self.copied {
            copied.wait()?;
        }
        Ok(self.tensor.f_to_device(Device::Cpu)?)
    }
}

/// A record whose values are being copied to the host.
#[derive(Debug)]
pub(crate) struct InFlight {
    record: Record,
    /// For each device, its scalars and the copy of their values as one vector.
    scalars: Vec<(Vec<LateScalar>, Transfer)>,
    /// The names and contents of the histograms, images and texts, in the order of the record, each
    /// with its copy if it is on a device.
    media: Vec<(String, Content, Option<Transfer>)>,
}

impl InFlight {
    /// Starts copying the values of a record to the host.
    pub(crate) fn depart(
        record: Record,
        late: Vec<LateScalar>,
        pending: Vec<Pending>,
        leaves_unread: bool,
    ) -> Result<Self> {
        let mut by_device: Vec<(Device, Vec<LateScalar>)> = Vec::new();
        for scalar in late {
            let device = scalar.tensor.device();
            match by_device.iter_mut().find(|(known, _)| *known == device) {
                Some((_, scalars)) => scalars.push(scalar),
                None => by_device.push((device, vec![scalar])),
            }
        }
        let stack = |(_, scalars): (Device, Vec<LateScalar>)| {
            let tensors: Vec<_> = scalars.iter().map(|scalar| &scalar.tensor).collect();
            let transfer = Transfer::begin(&Tensor::f_stack(&tensors, 0)?)?;
            Ok((scalars, transfer))
        };
        let scalars = by_device.into_iter().map(stack).collect::<Result<_>>()?;
        let begin = |mut pending: Pending| {
            let transfer = pending.content.late_tensor(leaves_unread).map(|tensor| Transfer::begin(tensor));
            Ok((pending.full_name(), pending.content, transfer.transpose()?))
        };
        Ok(InFlight { record, scalars, media: pending.into_iter().map(begin).collect::<Result<_>>()? })
    }

    /// Returns whether no value is being copied, so that [`arrive`](InFlight::arrive) does not
    /// wait.
    pub(crate) fn has_arrived(&self) -> bool {
        self.scalars.is_empty() && self.media.iter().all(|(.., transfer)| transfer.is_none())
    }

    /// Returns the record. Waits for the copies if necessary.
    pub(crate) fn arrive(self) -> Result<Record> {
        let InFlight { mut record, scalars, media } = self;
        for (scalars, transfer) in scalars {
            let values = Vec::<f64>::try_from(&transfer.finish()?.f_to_kind(Kind::Double)?)?;
            for (LateScalar { index, reduce, sum, .. }, value) in scalars.into_iter().zip(values) {
                record.scalars[index].1 = sum.result(reduce, Some(value)).unwrap_or(f64::NAN);
            }
        }
        for (name, mut content, transfer) in media {
            if let (Some(transfer), Some(tensor)) = (transfer, content.late_tensor(true)) {
                *tensor = transfer.finish()?;
            }
            let media = match content {
                Content::Text(text) => Some(Media::Text(text)),
                Content::Image(pixels) => Some(Media::Image(Image::from_pixels(&pixels)?)),
                Content::Histogram(summary) => Histogram::from_summary(&summary)?.map(Media::Histogram),
            };
            record.media.extend(media.map(|media| (name, media)));
        }
        Ok(record)
    }
}
