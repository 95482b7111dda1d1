import type { Config } from '#core/base/config.ts'
import { cookieName } from '../sign-in/signed-cookies.ts'

/** Names of the cookies that bind a browser to its requests. */
export const cookieNames = (config: Pick<Config, 'BASE_URL'>) => ({
  session: cookieName(config, 'oauth_session'),
  interaction: cookieName(config, 'oauth_interaction'),
  resume: cookieName(config, 'oauth_resume'),
})
