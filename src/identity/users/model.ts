import { z } from 'zod'
import { invalid } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { patchBody, record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'

export const roles = ['admin', 'user'] as const
export type Role = (typeof roles)[number]

const role = z.enum(roles).describe('admin manages the deployment; user acts by policies')

export const User = record(
  'User',
  {
    username: z.string().describe('Name to sign in with'),
    role,
    policy_ids: z.array(z.string()).describe('Attached policies in attach order'),
    last_login_at: z.string().nullable().describe('When the user last signed in'),
    disabled_at: z.string().nullable().describe('Every credential of a disabled user is refused until it is enabled'),
  },
  { project: false },
)

export const Me = User.extend({
  credential: z
    .object({
      type: z.enum(['user', 'api_key', 'oauth_token', 'run']),
      id: z.string().describe('Id of the user, key or grant'),
      project_id: z.string().nullable().describe('Project that the credential is bound to'),
      expires_at: z.string().nullable().describe('null: it does not expire'),
      scopes: z.array(z.string()).nullable().describe('Scopes of an OAuth token'),
    })
    .describe('What the request was authenticated with'),
}).meta({ id: 'Me' })

const issued = {
  token: z.string().describe('Bearer token'),
  expires_at: z.string().describe('When the token ends'),
}

export const SignedIn = z
  .object({
    ...issued,
    id: z.string().describe('Id of the user'),
    username: z.string().describe('Name as it was created'),
    role,
  })
  .meta({ id: 'SignedIn' })

export const Token = z.object(issued).meta({ id: 'UserToken' })

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

const newPassword = password.describe('PASSWORD_MIN_LENGTH characters or more, 1024 bytes at most')

export const Credentials = z
  .strictObject({ username, password: password.describe('Password of the user') })
  .meta({ id: 'Credentials' })
export const UserInput = z
  .strictObject({ username, password: newPassword, role: role.default('user') })
  .meta({ id: 'UserInput' })
export const UserPatch = patchBody('UserPatch', {
  username,
  role,
  disabled: z.boolean().describe('Refuses every credential of the user'),
})
export const OwnPasswordInput = z
  .strictObject({ current_password: password.describe('Password as it is'), new_password: newPassword })
  .meta({ id: 'OwnPasswordInput' })
export const PasswordInput = z.strictObject({ new_password: newPassword }).meta({ id: 'PasswordInput' })

/** Refuses a new password that is shorter than PASSWORD_MIN_LENGTH. `path` is its field. Raises VALIDATION_FAILED. */
export function checkNewPassword(text: string, minLength: number, path: string): void {
  if ([...text].length < minLength)
    invalid({ code: 'TOO_SMALL', path, message: `must be at least ${minLength} characters` })
}

export const userKind = kind({
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
export type UserRow = z.output<typeof userKind.row>
