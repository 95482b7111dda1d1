import { flag, setting, settings, type Values } from '#core/base/setting.ts'

export const uiSettings = settings('protocols', {
  UI_MOUNT: setting(flag, 'true', 'Whether /ui/v1 is served; otherwise 404.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof uiSettings> {}
}
