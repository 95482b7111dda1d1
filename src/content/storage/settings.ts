import { flag, integer, optional, setting, settings, text, type Values } from '#core/base/setting.ts'

export const storageSettings = settings('content', {
  FILES_STORAGE_PROVIDER: setting(
    text,
    'postgres',
    'Backend of new files: postgres, local or s3. Existing files remain in their backend.',
  ),
  FILES_STORAGE_DIR: setting(optional, '', 'Directory of the local backend.'),
  FILES_S3_BUCKET: setting(optional, '', 'Bucket of the s3 backend.'),
  FILES_S3_REGION: setting(optional, process.env.AWS_REGION ?? '', 'Region of the s3 backend; default AWS_REGION.'),
  FILES_S3_KEY_PREFIX: setting(text, '', 'Prefix of object keys.'),
  FILES_S3_ENDPOINT: setting(optional, '', 'URL of an S3-compatible store.'),
  FILES_S3_FORCE_PATH_STYLE: setting(flag, 'false', 'Whether the bucket is part of the path instead of the host name.'),
  FILES_S3_IDLE_TIMEOUT_MS: setting(
    integer(100),
    '30000',
    'Idle timeout of a request to the store, which is tried up to three times, and of a client that reads a download.',
  ),
  FILE_BLOB_CHUNK_BYTES: setting(integer(1024, 16_777_216), '262144', 'Chunk size of the postgres backend.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof storageSettings> {}
}
