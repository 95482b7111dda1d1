import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const documentSettings = settings('content', {
  DOCUMENT_CONTENT_MAX_BYTES: setting(integer(1, 50_000_000), '5242880', 'Maximum inline text of a document.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof documentSettings> {}
}
