import { raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { parse } from '../../core/api/validate.ts'
import type { RequestFacts } from '../../core/invoke/call.ts'
import type { Services } from '../../core/process/services.ts'
import { Credentials, checkNewPassword, type UserRow } from './model.ts'
import { hashPassword } from './passwords.ts'
import { signInEntry } from './sign-in-audit.ts'
import { hasUsers, insertUser, lockBootstrap } from './store.ts'

/**
 * Makes the first user, an admin. Of concurrent calls one makes it. Raises VALIDATION_FAILED for what cannot be a
 * name or a password, BOOTSTRAP_ALREADY_COMPLETED once any user exists.
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
    const made = await insertUser(tx, { id: newId('user'), username, role: 'admin', password_hash })
    if (!made) return raise('BOOTSTRAP_ALREADY_COMPLETED')
    tx.audit(signInEntry('users:Bootstrap', 201, username, made.id, request))
    return made
  })
}

const PRUDENT_PASSWORD_LENGTH = 8

/** Makes the first admin out of ADMIN_USERNAME and ADMIN_PASSWORD; does nothing once any user exists. */
export async function bootstrapFromSettings(services: Services): Promise<void> {
  const { config, log, pool } = services
  if (config.production && config.PASSWORD_MIN_LENGTH < PRUDENT_PASSWORD_LENGTH)
    log.warn({ PASSWORD_MIN_LENGTH: config.PASSWORD_MIN_LENGTH }, 'passwords may be short')
  const { ADMIN_USERNAME: username, ADMIN_PASSWORD: password } = config
  if (!username || !password || (await hasUsers(pool))) return
  try {
    const { id } = await bootstrapAdmin(services, { username, password })
    log.info({ user_id: id }, 'first admin made')
  } catch (error) {
    if ((error as { code?: string }).code !== 'BOOTSTRAP_ALREADY_COMPLETED') throw error
  }
}
