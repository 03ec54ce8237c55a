//! Records whose values are being copied from a device.

use tch::{Device, Kind, Tensor};

use super::histogram::Histogram;
use super::image::Image;
use super::media::{Content, Media, Pending};
use super::meter::{Reduce, Scalar, Sum};
use super::record::Record;
use crate::error::Result;
use crate::libtorch::Event;

/// A tensor that is being copied to the host.
#[derive(Debug)]
struct Transfer {
    /// The tensor on the host, valid once the event `copied` has occurred. If `copied` is `None`,
    /// the original tensor.
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

/// A scalar of a record that is still on a device.
#[derive(Debug)]
struct Late {
    /// The index of this scalar among the scalars of the record.
    index: usize,
    reduce: Reduce,
    /// The reduction without the tensor that is being copied.
    sum: Sum,
}

/// A record whose values are being copied to the host.
#[derive(Debug)]
pub(crate) struct InFlight {
    record: Record,
    /// For each device, its scalars and the copy of their values as one vector.
    scalars: Vec<(Vec<Late>, Transfer)>,
    /// The names and contents of the histograms, images and texts, in the order of the record, each
    /// with the copy in progress, if there is one.
    media: Vec<(String, Content, Option<Transfer>)>,
}

impl InFlight {
    /// Starts copying the values of a record to the host.
    pub(super) fn depart(
        mut record: Record,
        scalars: Vec<(String, Scalar)>,
        pending: Vec<Pending>,
        leaves_unread: bool,
    ) -> Result<Self> {
        let mut by_device: Vec<(Device, Vec<Late>, Vec<Tensor>)> = Vec::new();
        for (index, (name, scalar)) in scalars.into_iter().enumerate() {
            let (reduce, mut sum) = match scalar {
                Scalar::Number(value) => {
                    record.scalars.push((name, value));
                    continue;
                }
                Scalar::Late(reduce, sum) => (reduce, sum),
            };
            record.scalars.push((name, f64::NAN));
            let Some(tensor) = sum.unread.take() else { continue };
            let device = tensor.device();
            let late = Late { index, reduce, sum };
            match by_device.iter_mut().find(|(known, ..)| *known == device) {
                Some((_, scalars, tensors)) => {
                    scalars.push(late);
                    tensors.push(tensor);
                }
                None => by_device.push((device, vec![late], vec![tensor])),
            }
        }
        let mut in_flight = InFlight { record, scalars: Vec::new(), media: Vec::new() };
        for (_, scalars, tensors) in by_device {
            let transfer = Transfer::begin(&Tensor::f_stack(&tensors, 0)?)?;
            in_flight.scalars.push((scalars, transfer));
        }
        for mut pending in pending {
            let late = pending.content.late_tensor(leaves_unread);
            let transfer = late.map(|tensor| Transfer::begin(tensor)).transpose()?;
            in_flight.media.push((pending.full_name(), pending.content, transfer));
        }
        Ok(in_flight)
    }

    /// Returns `true` if there are no values to copy. [`arrive`](InFlight::arrive) then does not
    /// wait.
    pub(crate) fn has_arrived(&self) -> bool {
        self.scalars.is_empty() && self.media.iter().all(|(.., transfer)| transfer.is_none())
    }

    /// Returns the record. Waits for the copies if necessary.
    pub(crate) fn arrive(self) -> Result<Record> {
        let InFlight { mut record, scalars, media } = self;
        for (scalars, transfer) in scalars {
            let values = Vec::<f64>::try_from(&transfer.finish()?.f_to_kind(Kind::Double)?)?;
            for (Late { index, reduce, mut sum }, value) in scalars.into_iter().zip(values) {
                sum.read(reduce, value);
                record.scalars[index].1 = sum.result(reduce).unwrap_or(f64::NAN);
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
