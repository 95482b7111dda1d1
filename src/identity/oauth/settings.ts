import { z } from 'zod'
import { derived, flag, httpUrl, integer, list, setting, settings, type Values } from '#core/base/setting.ts'

export const oauthSettings = settings(
  'identity',
  {
    OAUTH_CIMD_ENABLED: setting(flag, 'true', 'Whether OAuth clients described by a metadata document are accepted.'),
    OAUTH_CIMD_HOSTS: setting(
      list.pipe(z.array(z.string().regex(/^(\*|(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*)$/, 'must be *, host or *.suffix'))),
      '*',
      'Allowed hosts of client metadata documents, comma-separated: `*`, host or `*.suffix`.',
    ),
    OAUTH_REGISTRATION_ENABLED: setting(flag, 'true', 'Whether OAuth clients may register themselves.'),
    OAUTH_INTROSPECTION_ENABLED: setting(
      flag,
      'false',
      'Whether confidential OAuth clients may introspect their refresh tokens.',
    ),
    OAUTH_DEVICE_ENABLED: setting(flag, 'true', 'Whether the OAuth device grant is enabled.'),
    OAUTH_CONSENT_URL: setting(
      derived(httpUrl),
      '',
      'URL of the consent page, with the origin of BASE_URL; default `BASE_URL/oauth/consent`.',
    ),
    OAUTH_ACCESS_TOKEN_TTL_SECONDS: setting(integer(10, 86_400), '3600', 'Lifetime of an OAuth access token.'),
    OAUTH_REFRESH_TOKEN_TTL_SECONDS: setting(
      integer(60, 31_536_000),
      '2592000',
      'Lifetime of an OAuth refresh token; a grant ends if none is used within it.',
    ),
    OAUTH_REFRESH_REUSE_GRACE_SECONDS: setting(
      integer(0, 300),
      '60',
      'Time in which a used refresh token returns its successor once more, for clients that lost the response or refresh concurrently; later use ends its grant. 0 disables the grace.',
    ),
    OAUTH_GRANT_MAX_SECONDS: setting(
      integer(60, 315_360_000),
      '31536000',
      'Maximum lifetime of an OAuth grant; then the user must consent again.',
    ),
  },
  (config, problem) => {
    config.OAUTH_CONSENT_URL ??= `${config.BASE_URL}/oauth/consent`
    if (URL.parse(config.OAUTH_CONSENT_URL)?.origin !== URL.parse(config.BASE_URL)?.origin)
      problem('OAUTH_CONSENT_URL', 'must have the origin of BASE_URL')
  },
)

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof oauthSettings> {}
}
