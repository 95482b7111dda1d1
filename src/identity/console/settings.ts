import { flag, integer, setting, settings, type Values } from '#core/base/setting.ts'

export const consoleSettings = settings('process', {
  CONSOLE_ENABLED: setting(flag, 'true', 'Serves the console at `BASE_URL/app`.'),
  CONSOLE_IDLE_MINUTES: setting(
    integer(0, 1440),
    '30',
    'Minutes without input after which a sign-in of the console ends; 0 never.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof consoleSettings> {}
}
