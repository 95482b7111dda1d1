import { integer, setting, settings, type Values } from '../base/setting.ts'

export const writeSettings = settings('control', {
  EVENT_DATA_MAX_BYTES: setting(
    integer(0),
    '0',
    'Maximum size of event data; larger data is reduced to its scalar fields. 0 disables the limit.',
  ),
})

declare module '../base/config.ts' {
  interface Config extends Values<typeof writeSettings> {}
}
