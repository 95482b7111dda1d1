import { z } from 'zod'
import { raiseInvalid } from '../../core/api/errors.ts'
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
  token: z.string().describe('Bearer token').meta({ 'x-secret': true }),
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
export type SignedIn = z.output<typeof SignedIn>

export const Token = z.object(issued).meta({ id: 'UserToken' })

const CONTROL = /\p{Cc}/u
const MAX_PASSWORD_BYTES = 1024

export const Username = z
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
  .meta({ 'x-secret': true, example: 'correct-horse-battery' })

const newPassword = password.describe('PASSWORD_MIN_LENGTH characters or more, 1024 bytes at most')

export const Credentials = z
  .strictObject({ username: Username, password: password.describe('Password of the user') })
  .meta({ id: 'Credentials' })

/** A code that stands for a finished sign-in elsewhere, and what shows that it was made for this client. */
export type SignInCode = { oidc_code: string; code_verifier: string }

const byPassword = ['username', 'password'] as const
const byCode = ['oidc_code', 'code_verifier'] as const

export const SignInInput = z
  .strictObject({
    ...Credentials.partial().shape,
    oidc_code: z
      .string()
      .min(1)
      .max(128)
      .optional()
      .describe('One-time code of a sign-in with a company account, in place of username and password'),
    code_verifier: z
      .string()
      .regex(/^[\w.~-]{43,128}$/, 'must be 43 to 128 letters, digits or -._~')
      .optional()
      .describe('The text whose SHA-256 was the code_challenge of that sign-in'),
  })
  .superRefine((body, context) => {
    const isCode = byCode.some(name => body[name] !== undefined)
    for (const name of isCode ? byCode : byPassword)
      if (body[name] === undefined)
        context.addIssue({ code: 'custom', path: [name], message: 'is required', params: { code: 'REQUIRED' } })
    for (const name of isCode ? byPassword : [])
      if (body[name] !== undefined)
        context.addIssue({ code: 'custom', path: [name], message: 'must be left out where there is an oidc_code' })
  })
  .meta({ id: 'SignInInput', example: { username: 'ada', password: 'correct-horse-battery' } })
export const UserInput = z
  .strictObject({ username: Username, password: newPassword, role: role.default('user') })
  .meta({ id: 'UserInput' })
export const UserPatch = patchBody('UserPatch', {
  username: Username,
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
    raiseInvalid({ code: 'TOO_SMALL', path, message: `must be at least ${minLength} characters` })
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
