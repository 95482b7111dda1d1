import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const actorFileSettings = settings('process', {
  ACTOR_FILE_MAX_BYTES: setting(integer(1), '20971520', 'Maximum size of a file that an end user uploads.'),
})

export const fileSettings = settings('content', {
  FILES_MAX_UPLOAD_BYTES: setting(integer(1), '104857600', 'Maximum file size; larger uploads get 413.'),
  FILES_INLINE_MAX_BYTES: setting(
    integer(1, 300_000_000),
    '26214400',
    'Maximum file size in a JSON body or response and in a converter call, before base64.',
  ),
  FILES_MEMORY_BYTES: setting(
    integer(1_048_576),
    '268435456',
    'Memory per process for files sent to models and converters, at six times their size; further calls wait.',
  ),
  UPLOAD_TOKEN_TTL_SECONDS: setting(integer(60, 3600), '900', 'Default lifetime of an upload token.'),
  FILE_DOWNLOAD_TOKEN_TTL_SECONDS: setting(integer(1), '600', 'Lifetime of a download URL for a converter.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof actorFileSettings>, Values<typeof fileSettings> {}
}
