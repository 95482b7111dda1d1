import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const eventSettings = settings('control', {
  EVENT_RETENTION_DAYS: setting(integer(1), '30', 'Retention of events.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof eventSettings> {}
}
