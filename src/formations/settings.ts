import { flag, integer, optional, setting, settings, type Values } from '#core/base/setting.ts'

export const formationSettings = settings('formations', {
  FORMATION_RESOURCE_TYPES_CONFIG: setting(
    optional,
    '',
    "JSON file with the resource types of the operator's handlers, read at process start.",
  ),
  FORMATION_DEPLOY_TIMEOUT_MS: setting(
    integer(1000),
    '600000',
    'Maximum time a request waits for a deploy, which then continues in the background.',
  ),
  FORMATION_FORCE_CONFLICTS: setting(
    flag,
    'true',
    'Whether deploys overwrite changes made outside of them by default.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof formationSettings> {}
}
