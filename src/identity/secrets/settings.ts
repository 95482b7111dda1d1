import { z } from 'zod'
import { httpUrl, integer, optional, setting, settings, text, type Values } from '#core/base/setting.ts'

export const secretStoreSettings = settings('identity', {
  SECRETS_STORE_PREFIX: setting(
    z
      .string()
      .regex(/^(?:[A-Za-z0-9_.+=@-]|\{project_id\}|\/)*$/, 'must be path segments joined by /')
      .refine(text => text.includes('{project_id}') && text.endsWith('/'), 'must contain {project_id} and end in /'),
    'muster/{project_id}/',
    'Path of a project in external secret stores; secrets are only read below it.',
  ),
  SECRETS_STORE_TIMEOUT_MS: setting(integer(100, 60_000), '5000', 'Timeout of a read from a secret store.'),
  SECRETS_VAULT_ADDR: setting(
    httpUrl,
    '',
    'URL of a Vault with a key-value engine (version 2); if unset, secrets cannot refer to Vault.',
  ),
  SECRETS_VAULT_MOUNT: setting(text, 'secret', 'Mount path of the key-value engine.'),
  SECRETS_VAULT_NAMESPACE: setting(optional, '', 'Vault namespace.'),
  SECRETS_VAULT_TOKEN: setting(optional, '', 'Vault token; requires read access below the prefix.', {
    secret: true,
  }),
  SECRETS_VAULT_TOKEN_FILE: setting(
    optional,
    '',
    'File with the Vault token, as an alternative; read at each use, so that an agent can renew it.',
  ),
  SECRETS_AWS_REGION: setting(
    optional,
    '',
    'Region of AWS Secrets Manager, read with the AWS keys of the deployment; if unset, secrets cannot refer to it.',
  ),
  SECRETS_AWS_ENDPOINT: setting(httpUrl, '', 'URL of AWS Secrets Manager; default the endpoint of the region.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof secretStoreSettings> {}
}
