import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const streamSettings = settings('process', {
  STREAMS_MAX: setting(integer(1), '20000', 'Open session streams of a process; beyond that, 503.'),
  STREAMS_PER_PROJECT: setting(
    integer(1),
    '5000',
    'Open session streams of a project over all processes; beyond that, 429 STREAM_LIMIT_EXCEEDED.',
  ),
})

export const sessionSettings = settings('workers', {
  SESSION_SWEEP_SECONDS: setting(integer(1), '60', 'Polling interval for expired sessions.'),
  SESSION_FRAMES_KEEP_HOURS: setting(
    integer(1),
    '24',
    'Retention of the events with which an interrupted session stream resumes.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof streamSettings>, Values<typeof sessionSettings> {}
}
