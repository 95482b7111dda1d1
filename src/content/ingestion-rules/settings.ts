import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const converterSettings = settings('content', {
  CONVERTER_TIMEOUT_MS: setting(integer(100), '120000', 'Timeout of a converter call.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof converterSettings> {}
}
