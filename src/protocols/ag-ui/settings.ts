import { flag, setting, settings, type Values } from '#core/base/setting.ts'

export const aguiSettings = settings('protocols', {
  AGUI_MOUNT: setting(flag, 'true', 'Whether /ag-ui is served; otherwise 404.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof aguiSettings> {}
}
