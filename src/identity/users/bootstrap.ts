import type { RequestFacts } from '#core/api/call.ts'
import { parse } from '#core/api/validate.ts'
import { raise } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { Credentials, checkNewPassword, type UserRow, userKind } from './model.ts'
import { hashPassword } from './passwords.ts'
import { signInEntry } from './sign-in-audit.ts'
import { hasUsers, insertUser, lockBootstrap } from './store.ts'

/**
 * Creates the first user, an admin. Only one of several concurrent calls succeeds.
 * @throws VALIDATION_FAILED for an invalid username or password, BOOTSTRAP_ALREADY_COMPLETED if a user exists
 */
export async function bootstrapAdmin(
  services: Services,
  credentials: { username: string; password: string },
  request: RequestFacts | null = null,
): Promise<UserRow> {
  const { username, password } = parse(Credentials, credentials)
  checkNewPassword(password, services.config.PASSWORD_MIN_LENGTH, 'password')
  if (await hasUsers(services.pool)) raise('BOOTSTRAP_ALREADY_COMPLETED')
  const password_hash = await hashPassword(services, password, request ?? { ip: null })
  return services.write(async tx => {
    await lockBootstrap(tx)
    if (await hasUsers(tx)) raise('BOOTSTRAP_ALREADY_COMPLETED')
    const created = await insertUser(tx, { id: newId(userKind.prefix), username, role: 'admin', password_hash })
    if (!created) return raise('BOOTSTRAP_ALREADY_COMPLETED')
    tx.audit(signInEntry('users:Bootstrap', 201, username, created.id, request))
    return created
  })
}

const RECOMMENDED_PASSWORD_LENGTH = 8

/** Creates the first admin from ADMIN_USERNAME and ADMIN_PASSWORD; does nothing if a user exists. */
export async function bootstrapFromSettings(services: Services): Promise<void> {
  const { config, log, pool } = services
  if (config.production && config.PASSWORD_MIN_LENGTH < RECOMMENDED_PASSWORD_LENGTH)
    log.warn({ PASSWORD_MIN_LENGTH: config.PASSWORD_MIN_LENGTH }, 'PASSWORD_MIN_LENGTH below recommended minimum')
  const { ADMIN_USERNAME: username, ADMIN_PASSWORD: password } = config
  if (!username || !password || (await hasUsers(pool))) return
  try {
    const { id } = await bootstrapAdmin(services, { username, password })
    log.info({ user_id: id }, 'first admin created')
  } catch (error) {
    if ((error as { code?: string }).code !== 'BOOTSTRAP_ALREADY_COMPLETED') throw error
  }
}
