import { z } from 'zod'
import { invalid } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'

export const roles = ['admin', 'user'] as const
export type Role = (typeof roles)[number]

export const User = record(
  'User',
  {
    username: z.string(),
    role: z.enum(roles),
    policy_ids: z.array(z.string()).describe('Attached policies in attach order'),
    last_login_at: z.string().nullable(),
    disabled_at: z.string().nullable().describe('Every credential of a disabled user is refused until it is enabled'),
  },
  { project: false },
)
export type User = z.infer<typeof User>

export const Me = User.extend({
  credential: z.object({
    type: z.enum(['user', 'api_key', 'oauth_token', 'run']),
    id: z.string(),
    project_id: z.string().nullable(),
    expires_at: z.string().nullable(),
    scopes: z.array(z.string()).nullable(),
  }),
}).meta({ id: 'Me' })

export const SignedIn = z
  .object({ token: z.string(), expires_at: z.string(), id: z.string(), username: z.string(), role: z.enum(roles) })
  .meta({ id: 'SignedIn' })

export const Token = z.object({ token: z.string(), expires_at: z.string() }).meta({ id: 'UserToken' })

const CONTROL = /\p{Cc}/u
const MAX_PASSWORD_BYTES = 1024

const username = z
  .string()
  .trim()
  .min(1)
  .max(128)
  .refine(text => !CONTROL.test(text), 'must hold no control characters')
  .describe('1 to 128 characters, unique whatever the case')

const password = z
  .string()
  .min(1)
  .refine(text => Buffer.byteLength(text) <= MAX_PASSWORD_BYTES, `must be at most ${MAX_PASSWORD_BYTES} bytes`)

export const Credentials = z.strictObject({ username, password }).meta({ id: 'Credentials' })
export const UserInput = z
  .strictObject({ username, password, role: z.enum(roles).default('user') })
  .meta({ id: 'UserInput' })
export const UserPatch = z
  .strictObject({ username: username.optional(), role: z.enum(roles).optional(), disabled: z.boolean().optional() })
  .meta({ id: 'UserPatch' })
export const OwnPasswordInput = z
  .strictObject({ current_password: password, new_password: password })
  .meta({ id: 'OwnPasswordInput' })
export const PasswordInput = z.strictObject({ new_password: password }).meta({ id: 'PasswordInput' })

/** Refuses a new password that is shorter than PASSWORD_MIN_LENGTH. `path` is its field. Raises VALIDATION_FAILED. */
export function checkNewPassword(text: string, minLength: number, path: string): void {
  if ([...text].length < minLength)
    invalid({ code: 'TOO_SMALL', path, message: `must be at least ${minLength} characters` })
}

export type UserRow = User & { project_id: null }

/** A user as the wire shows it: nothing of the password. */
export const presentUser = ({ project_id: _, ...user }: UserRow): User => user

export const users = kind({
  name: 'user',
  prefix: 'user',
  table: 'users',
  global: true,
  record: User,
  hidden: { project_id: z.null() },
  computed: {
    project_id: sql.fragment`null::text`,
    policy_ids: sql.fragment`array(select a.policy_id from user_policies a where a.user_id = t.id order by a.position)`,
  },
})
