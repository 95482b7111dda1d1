import { flag, setting, settings, type Values } from '#core/base/setting.ts'

export const a2aSettings = settings('protocols', {
  A2A_MOUNT: setting(flag, 'false', 'Whether /a2a is served; otherwise 404.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof a2aSettings> {}
}
