import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const actorSettings = settings('process', {
  ACTOR_TOKEN_MAX_TTL_SECONDS: setting(integer(60, 86_400), '86400', 'Maximum lifetime of an end-user token.'),
  ACTORS_CREATED_PER_HOUR: setting(
    integer(1),
    '10000',
    'Maximum number of actors that a key creates per hour for tokens and chat clients.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof actorSettings> {}
}
