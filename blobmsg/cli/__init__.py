"""The command line `blobmsg`: thin commands over the library; nothing else imports it."""
