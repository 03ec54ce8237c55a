//! The part of the protocol buffer wire format that the files of loggers need.

/// A message that is being written.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Returns the bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn key(&mut self, field: u8, wire_type: u8) {
        self.varint(u64::from(field) << 3 | u64::from(wire_type));
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Adds an integer, a Boolean or an enum value.
    pub(super) fn integer(mut self, field: u8, number: u64) -> Self {
        self.key(field, 0);
        self.varint(number);
        self
    }

    pub(super) fn double(mut self, field: u8, number: f64) -> Self {
        self.key(field, 1);
        self.0.extend(number.to_le_bytes());
        self
    }

    pub(super) fn float(mut self, field: u8, number: f32) -> Self {
        self.key(field, 5);
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Adds bytes or a string.
    pub(super) fn field(mut self, field: u8, content: impl AsRef<[u8]>) -> Self {
        let content = content.as_ref();
        self.key(field, 2);
        self.varint(content.len() as u64);
        self.0.extend_from_slice(content);
        self
    }

    pub(super) fn message(self, field: u8, message: &Message) -> Self {
        self.field(field, message.bytes())
    }

    /// Adds a packed list of doubles.
    pub(super) fn doubles(mut self, field: u8, numbers: impl ExactSizeIterator<Item = f64>) -> Self {
        self.key(field, 2);
        self.varint(8 * numbers.len() as u64);
        numbers.for_each(|number| self.0.extend(number.to_le_bytes()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_match_the_protocol_buffer_wire_format() {
        // Examples from the protocol buffer documentation: field 1 = 150, field 2 = "testing".
        let message = Message::default().integer(1, 150).field(2, "testing");
        assert_eq!(message.bytes(), b"\x08\x96\x01\x12\x07testing");
        let message = Message::default().float(2, 1.0).double(1, -2.0).doubles(6, [0.0].into_iter());
        let expected = b"\x15\0\0\x80\x3f\x09\0\0\0\0\0\0\0\xc0\x32\x08\0\0\0\0\0\0\0\0";
        assert_eq!(message.bytes(), expected);
        // From field 16 on, the key takes two bytes.
        assert_eq!(Message::default().field(17, "x").bytes(), b"\x8a\x01\x01x");
    }
}
