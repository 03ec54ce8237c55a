//! Certificates: chains of hashes that a replay confirms.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use trainer::hooks::Checkpoint;
use trainer::loggers::Certificate;
use trainer::prelude::*;
use trainer::testing::{Ranks, once};
use trainer::{CancelToken, TrainerBuilder};
use trainer_formats::certificate::{self, CERTIFICATE_FILE, Link, Place};

use crate::replay::{TOTAL, builder, count, data, held_out};
use crate::support::{Random, child_process, scratch, tree};

/// A run in this folder, with a checkpoint at these intervals and a certificate.
fn certified(folder: &Path, every: Every) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    let checkpoint = Checkpoint::in_run_folder().every(every).keep_last(100);
    builder().run_folder(folder).hook(checkpoint).hook(Certificate::new())
}

fn train<T: Task<Batch = (Tensor, Tensor)>>(builder: TrainerBuilder<T>) {
    builder.build().unwrap().fit(&mut data(), Some(&mut held_out())).unwrap();
}

fn read(folder: &Path) -> certificate::Certificate {
    certificate::Certificate::read(folder.join(CERTIFICATE_FILE)).unwrap()
}

/// Trains a stretch of the run in this folder again.
fn verify(folder: &Path, stretch: usize) -> Result<Range<u64>> {
    builder().build()?.verify(&mut data(), Some(&mut held_out()), folder, stretch)
}

/// Writes a certificate whose chain is right again after its links were changed.
fn seal(folder: &Path, forged: &certificate::Certificate) {
    let mut previous = forged.header.hash().unwrap();
    let mut text = serde_json::to_string(&forged.header).unwrap() + "\n";
    for Link { batches, place, steps, state, .. } in forged.links.clone() {
        let link = Link::after(&previous, batches, place, steps, state);
        previous.clone_from(&link.link);
        text += &(serde_json::to_string(&link).unwrap() + "\n");
    }
    fs::write(folder.join(CERTIFICATE_FILE), text).unwrap();
}

/// Removes the checkpoints for which `is_removed` is true of the number of batches.
fn remove_checkpoints(folder: &Path, is_removed: impl Fn(u64) -> bool) {
    for entry in fs::read_dir(folder.join("checkpoints")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if let Some(step) = name.strip_prefix("step-")
            && is_removed(step.parse().unwrap())
        {
            fs::remove_dir_all(path).unwrap();
        }
    }
}

#[test]
#[ignore = "run by another test in a child process"]
fn certificates_in_a_separate_process() {
    honest_runs();
    resumed_runs();
    changed_circumstances_and_programs();
    forged_certificates();
    dishonest_runs();
    two_fits();
}

#[test]
fn every_stretch_of_an_honest_run_is_confirmed_and_every_forgery_is_detected() {
    let output = child_process("certificate::certificates_in_a_separate_process").output().unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn honest_runs() {
    for (nth, every) in
        [Every::Steps(3), Every::Steps(2), Every::Epochs(1), Every::Fraction(0.5)].into_iter().enumerate()
    {
        let folder = scratch(&format!("certificate-{nth}"));
        train(certified(&folder, every));
        let before = tree(&folder);
        let certificate = read(&folder);
        let last = certificate.links.last().unwrap();
        assert_eq!((last.batches, last.place), (TOTAL, Place::End));
        let stretches = certificate.stretches();
        assert!(stretches.len() >= 5, "{every:?}");
        let mut end = 0;
        for nth in 0..stretches.len() {
            let confirmed = verify(&folder, nth).unwrap_or_else(|error| panic!("{every:?} {nth}: {error}"));
            assert_eq!(confirmed.start, end, "{every:?} {nth}");
            end = confirmed.end;
        }
        assert_eq!(end, TOTAL);
        let text = verify(&folder, stretches.len()).unwrap_err().to_string();
        assert!(text.contains("stretches, numbered from 0: there is no stretch"), "{text}");
        assert_eq!(tree(&folder), before, "verifying writes nothing");
        // With fewer checkpoints, a stretch begins further back.
        remove_checkpoints(&folder, |step| step % 16 != 0);
        for nth in 0..stretches.len() {
            verify(&folder, nth).unwrap_or_else(|error| panic!("{every:?} {nth}: {error}"));
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}

fn resumed_runs() {
    let whole = scratch("certificate-whole");
    train(certified(&whole, Every::Steps(3)));
    for batch in [5, 14, 23] {
        let folder = scratch(&format!("certificate-cut-{batch}"));
        let token = CancelToken::new();
        let first = certified(&folder, Every::Steps(3)).cancel_token(token.clone());
        let first = first.observe::<AfterStep>("cancel", move |cx| {
            if cx.counters().batches_seen == batch {
                token.cancel();
            }
        });
        first.build().unwrap().fit(&mut data(), Some(&mut held_out())).unwrap_err();
        train(certified(&folder, Every::Steps(3)).resume(Resume::Auto));
        let [one, other] = [&whole, &folder].map(|folder| read(folder));
        assert_eq!(one.header, other.header);
        // The run that was cancelled has one more link, at the checkpoint that it wrote then.
        for link in &one.links {
            let is_same = |other: &&Link| {
                (&other.state, &other.steps, other.batches) == (&link.state, &link.steps, link.batches)
            };
            assert!(other.links.iter().find(is_same).is_some(), "{batch}: {link:?}");
        }
        for nth in 0..other.stretches().len() {
            verify(&folder, nth).unwrap_or_else(|error| panic!("{batch} {nth}: {error}"));
        }
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::remove_dir_all(&whole).unwrap();
}

fn changed_circumstances_and_programs() {
    let folder = scratch("certificate-changed");
    train(certified(&folder, Every::Steps(3)));
    let honest = read(&folder);
    // Another program.
    let noisy = builder().observe::<AfterBackward>("noise", |cx| {
        if cx.counters().batches_seen == 20 {
            let _guard = tch::no_grad_guard();
            let _ = cx.grad("fc1.bias").unwrap().get(0).g_add_scalar_(1e-6);
        }
    });
    let stretch =
        honest.stretches().iter().position(|stretch| stretch.start <= 20 && 20 < stretch.end).unwrap();
    let text = noisy
        .build()
        .unwrap()
        .verify(&mut data(), Some(&mut held_out()), &folder, stretch)
        .unwrap_err()
        .to_string();
    assert!(text.contains("the state after its last batch differs from the certificate"), "{text}");
    // The processor is named if something differs, and not if nothing does.
    let mut elsewhere = honest.clone();
    elsewhere.header.circumstances.insert("processor".to_owned(), "another one".to_owned());
    elsewhere.links[stretch].state = "0".repeat(64);
    seal(&folder, &elsewhere);
    let text = verify(&folder, stretch).unwrap_err().to_string();
    assert!(text.contains("- the circumstances differ: processor was another one and is now "), "{text}");
    verify(&folder, stretch + 2).unwrap();
    // No certificate, or a damaged one.
    fs::write(folder.join(CERTIFICATE_FILE), "{}\n").unwrap();
    let text = verify(&folder, 0).unwrap_err().to_string();
    assert!(text.contains("this is not a certificate of version 1"), "{text}");
    fs::remove_file(folder.join(CERTIFICATE_FILE)).unwrap();
    assert!(verify(&folder, 0).unwrap_err().to_string().contains(CERTIFICATE_FILE));
    fs::remove_dir_all(&folder).unwrap();
}

/// Links that were changed, in a chain that was made right again.
fn forged_certificates() {
    let folder = scratch("certificate-forged");
    train(certified(&folder, Every::Steps(3)));
    let honest = read(&folder);
    let mut random = Random(5);
    for nth in 0..count(60) {
        let mut forged = honest.clone();
        let stretch = random.below(forged.stretches().len());
        let stretches = forged.stretches();
        let link = &mut forged.links[stretches[stretch].link];
        match nth % 4 {
            0 => link.state = blake3::hash(b"forged").to_hex().to_string(),
            1 => link.steps = blake3::hash(b"forged").to_hex().to_string(),
            2 => link.state.replace_range(0..1, if link.state.starts_with('0') { "1" } else { "0" }),
            // A batch less, with the state of the whole stretch.
            _ => link.batches -= 1,
        }
        seal(&folder, &forged);
        assert!(verify(&folder, stretch).is_err(), "{nth}, stretch {stretch}");
    }
    seal(&folder, &honest);
    for stretch in 0..honest.stretches().len() {
        verify(&folder, stretch).unwrap();
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// What a program does in one batch, and does not tell.
#[derive(Clone, Copy)]
enum Cheat {
    Gradient,
    Weight,
    Draw,
    Rate,
    Data,
}

/// Runs whose program was another one than is claimed, with a right chain and right checkpoints.
fn dishonest_runs() {
    let mut random = Random(3);
    for nth in 0..count(40) {
        let folder: PathBuf = scratch(&format!("certificate-dishonest-{nth}"));
        let batch = random.below(TOTAL as usize) as u64;
        let cheat = [Cheat::Gradient, Cheat::Weight, Cheat::Draw, Cheat::Rate, Cheat::Data][nth % 5];
        let builder = certified(&folder, Every::Steps(3)).observe::<AfterBackward>("cheat", move |cx| {
            let _guard = tch::no_grad_guard();
            if cx.counters().batches_seen != batch {
                return;
            }
            let weight = cx.vars().get("fc2.weight").unwrap().shallow_clone();
            match cheat {
                Cheat::Gradient => drop(weight.grad().view([-1]).get(0).g_add_scalar_(1e-5)),
                Cheat::Weight => drop(weight.view([-1]).get(1).g_add_scalar_(1e-5)),
                Cheat::Rate => drop(weight.grad().g_mul_scalar_(1.001)),
                Cheat::Draw => drop(Tensor::rand([1], (Kind::Float, Device::Cpu))),
                Cheat::Data => {
                    drop(cx.batch::<(Tensor, Tensor)>().unwrap().0.get(0).get(0).g_add_scalar_(1e-3));
                }
            }
        });
        // Not the data of later epochs.
        let mut own = data();
        builder.build().unwrap().fit(&mut own, Some(&mut held_out())).unwrap();
        let stretches = read(&folder).stretches();
        let drawn =
            stretches.iter().position(|stretch| stretch.start <= batch && batch < stretch.end).unwrap();
        let found = verify(&folder, drawn).unwrap_err().to_string();
        assert!(
            found.contains("differs from the certificate") || found.contains("differ from the certificate"),
            "{nth}: {found}"
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}

/// The stretch between two fits is in no stretch.
fn two_fits() {
    let folder = scratch("certificate-fits");
    let mut trainer = certified(&folder, Every::Steps(3)).build().unwrap();
    trainer.fit(&mut data(), Some(&mut held_out())).unwrap();
    let _ = trainer.vars().get("fc2.bias").unwrap().data().g_add_scalar_(0.5);
    trainer.fit(&mut data(), Some(&mut held_out())).unwrap();
    let certificate = read(&folder);
    assert!(certificate.links.iter().any(|link| link.place == Place::Start));
    for nth in 0..certificate.stretches().len() {
        verify(&folder, nth).unwrap_or_else(|error| panic!("{nth}: {error}"));
    }
    assert_eq!(certificate.stretches().last().unwrap().end, 2 * TOTAL);
    fs::remove_dir_all(&folder).unwrap();
}

/// Rank 0 writes the certificate, and all ranks verify it.
#[cfg(target_os = "linux")]
#[test]
fn two_ranks_share_one_certificate_that_both_can_verify() {
    let folder = once(|| scratch("certificate-ranks"));
    Ranks::new(2)
        .run(|| {
            certified(&folder, Every::Steps(4)).build()?.fit(&mut data(), Some(&mut held_out())).map(drop)
        })
        .unwrap();
    let stretches = once(|| read(&folder).stretches().len());
    for nth in [0, 2, stretches - 1] {
        Ranks::new(2).run(|| verify(&folder, nth).map(drop)).unwrap();
    }
    once(|| fs::remove_dir_all(&folder).unwrap());
}
