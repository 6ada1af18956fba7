//! Attributes of objects, as extended attributes of their files.

use std::io::ErrorKind;

use ferrite::{File, XattrMode};
use object_store::{Attribute, Attributes, Error, Result};

use crate::failure;

/// The beginning of their names.
const PREFIX: &str = "user.object_store.";
/// The same, of those that the user of the store names.
const OF_USER: &str = "meta.";

const NAMED: [(Attribute, &str); 6] = [
    (Attribute::ContentDisposition, "content-disposition"),
    (Attribute::ContentEncoding, "content-encoding"),
    (Attribute::ContentLanguage, "content-language"),
    (Attribute::ContentType, "content-type"),
    (Attribute::CacheControl, "cache-control"),
    (Attribute::StorageClass, "storage-class"),
];

/// Gives a new file the attributes of its object.
pub(crate) fn set(file: &File, attributes: &Attributes) -> Result<()> {
    for (attribute, value) in attributes {
        let name = match attribute {
            Attribute::Metadata(key) => format!("{PREFIX}{OF_USER}{key}"),
            named => match NAMED.iter().find(|(attribute, _)| attribute == named) {
                Some((_, name)) => format!("{PREFIX}{name}"),
                None => {
                    return Err(Error::NotSupported {
                        source: "files have no place for an attribute of this kind; omit it".into(),
                    });
                }
            },
        };
        file.set_xattr(name, value.as_bytes(), XattrMode::Any)
            .map_err(failure::generic)?;
    }
    Ok(())
}

/// The attributes of an object. Files of an engine without extended attributes have none.
pub(crate) fn get(file: &File) -> Result<Attributes> {
    let names = match file.list_xattrs() {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(Attributes::new()),
        other => other.map_err(failure::generic)?,
    };
    let mut attributes = Attributes::new();
    for name in names {
        let Some(word) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let attribute = match word.strip_prefix(OF_USER) {
            Some(key) => Attribute::Metadata(key.to_owned().into()),
            None => match NAMED.iter().find(|(_, name)| *name == word) {
                Some((attribute, _)) => attribute.clone(),
                None => continue,
            },
        };
        let value = file.get_xattr(&name).map_err(failure::generic)?;
        let value = String::from_utf8(value).map_err(failure::generic)?;
        attributes.insert(attribute, value.into());
    }
    Ok(attributes)
}
