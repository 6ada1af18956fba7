//! Sizes as users write them: `1G`, `1.5G`, `64MiB`, `4096`.

pub(crate) use ferrite_vfs::volume::human_bytes as human;

/// Parses a size in bytes. Suffixes K, M, G, T (optionally with `B` or `iB`) are powers of 1024.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let hint = "write a number followed by K, M, G or T, for example 512M or 1G";
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return Err(format!("`{suffix}` is not a size suffix; {hint}")),
    };
    let wrong = || format!("`{text}` is not a size; {hint}");
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    // Fractions of a byte are dropped. Twelve digits distinguish the bytes of a TiB.
    if part.is_empty() || part.len() > 12 || (shift == 0 && number.contains('.')) {
        return Err(wrong());
    }
    let part_of = 10_u64.pow(part.len() as u32);
    let part: u64 = part.parse().map_err(|_| wrong())?;
    let part = (u128::from(part) << shift) / u128::from(part_of);
    whole
        .checked_mul(1 << shift)
        .and_then(|bytes| bytes.checked_add(part as u64))
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("`{text}` is out of range; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_as_people_write_them_and_wrong_ones_say_why() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("1G"), Ok(1 << 30));
        assert_eq!(parse("64MiB"), Ok(64 << 20));
        assert_eq!(parse("2kB"), Ok(2048));
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert_eq!(parse("0.25T"), Ok(1 << 38));
        assert_eq!(parse("1.999999999999T"), Ok((2 << 40) - 2));
        assert_eq!(parse("0.1K"), Ok(102), "parts of a byte are dropped");
        for wrong in ["1.", ".5G", "1.5", "1.2.3G", "1.5.G", "1.0000000000001G", "."] {
            assert!(parse(wrong).unwrap_err().contains("not a size"), "{wrong}");
        }
        assert!(parse("1X").unwrap_err().contains("`X`"));
        assert!(parse("G").unwrap_err().contains("not a size"));
        assert!(parse("-1G").is_err());
        assert!(parse("0").is_err());
        assert!(parse("99999999999T").unwrap_err().contains("range"));
    }
}
