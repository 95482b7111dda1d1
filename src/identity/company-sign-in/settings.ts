import { z } from 'zod'
import { flag, httpUrl, list, optional, setting, settings, text, type Values } from '#core/base/setting.ts'

/** `name=value`; the value may contain further equals signs. */
const requiredClaim = z
  .string()
  .regex(/^(?:[^=]+=.+)?$/s, 'must be name=value')
  .transform(text => {
    const at = text.indexOf('=')
    return at < 0 ? null : { name: text.slice(0, at), value: text.slice(at + 1) }
  })

export const companySignInSettings = settings(
  'identity',
  {
    OIDC_ISSUER: setting(
      httpUrl.refine(
        value => !value?.includes('/.well-known/'),
        'must be the issuer, not the URL of its discovery document',
      ),
      '',
      'Issuer of a company identity provider; with OIDC_CLIENT_ID, enables company sign-in.',
    ),
    OIDC_CLIENT_ID: setting(optional, '', 'Client ID of this deployment at the identity provider.'),
    OIDC_CLIENT_SECRET: setting(optional, '', 'Client secret; if unset, the client is public.', {
      secret: true,
    }),
    OIDC_SCOPES: setting(
      text.refine(value => value.split(' ').includes('openid'), 'must include openid'),
      'openid profile email',
      'Scopes requested from the identity provider, separated by spaces.',
    ),
    OIDC_USERNAME_CLAIM: setting(
      text,
      'preferred_username',
      'Claim from which usernames of provisioned users are derived.',
    ),
    OIDC_REQUIRED_CLAIM: setting(
      requiredClaim,
      '',
      'Claim `name=value` required at every sign-in, as a string or in a list of strings.',
    ),
    OIDC_AUTO_PROVISION: setting(
      flag,
      'false',
      'Whether a user is created at the first sign-in of an unknown account.',
    ),
    OIDC_DEFAULT_POLICY_IDS: setting(list, '', 'Policies of provisioned users, comma-separated.'),
  },
  (config, problem) => {
    if (config.production && config.OIDC_ISSUER?.startsWith('http:'))
      problem('OIDC_ISSUER', 'must be an https URL in production')
  },
)

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof companySignInSettings> {}
}
