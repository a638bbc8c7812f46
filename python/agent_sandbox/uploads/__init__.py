"""Upload sessions: files of any size that go past the model, straight to storage.

`service.UploadService` is the only caller of the store (the database) and of the blobs (the
bytes); `http` serves it.
"""
