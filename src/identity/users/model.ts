import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { patchBody, record } from '#core/api/record.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'

export const roles = ['admin', 'user'] as const
export type Role = (typeof roles)[number]

const role = z
  .enum(roles)
  .describe('admin – manages the deployment; user – has the permissions of the attached policies')

export const User = record(
  'User',
  {
    username: z.string().describe('Sign-in name'),
    role,
    display_name: z.string().nullable().describe('Name that end users see'),
    policy_ids: z.array(z.string()).describe('IDs of the attached policies in order of attachment'),
    last_login_at: z.string().nullable().describe('Time of the last sign-in'),
    disabled_at: z
      .string()
      .nullable()
      .describe(
        'Time at which the user was disabled; all credentials are refused until the user is enabled. Null if enabled.',
      ),
  },
  { project: false },
)

export const Me = User.extend({
  credential: z
    .object({
      type: z.enum(['user', 'api_key', 'oauth_token', 'run']),
      id: z.string().describe('ID of the user, key or grant'),
      project_id: z.string().nullable().describe('ID of the project to which the credential is bound'),
      expires_at: z.string().nullable().describe('Expiry time. Null for no expiry.'),
      scopes: z.array(z.string()).nullable().describe('Scopes of an OAuth token'),
    })
    .describe('Credential of the request'),
}).meta({ id: 'Me' })

const tokenFields = {
  token: z.string().describe('Bearer token').meta({ 'x-secret': true }),
  expires_at: z.string().describe('Expiry time of the token'),
}

export const SignedIn = z
  .object({
    ...tokenFields,
    id: z.string().describe('ID of the user'),
    username: z.string().describe('Username as stored'),
    role,
  })
  .meta({ id: 'SignedIn' })
export type SignedIn = z.output<typeof SignedIn>

export const Token = z.object(tokenFields).meta({ id: 'UserToken' })

const CONTROL = /\p{Cc}/u
const MAX_PASSWORD_BYTES = 1024

/** Characters that are not visible: controls, formats, line separators and fillers. */
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/u

/** Joiners and variation selectors within an emoji. */
const WITHIN_EMOJI = /(?<=\p{Extended_Pictographic}|\p{Emoji_Modifier}|\ufe0f)(?:\ufe0f|\u200d)/gu

/** Normalized (NFKC) and without invisible characters, so that two usernames with the same appearance are equal. */
export const Username = z
  .string()
  .overwrite(text => text.normalize('NFKC').trim())
  .min(1)
  .max(128)
  .refine(text => !INVISIBLE.test(text.replace(WITHIN_EMOJI, '')), 'must not contain invisible characters')
  .describe('Username of 1 to 128 characters, unique regardless of case')

const password = z
  .string()
  .min(1)
  .refine(text => Buffer.byteLength(text) <= MAX_PASSWORD_BYTES, `must be at most ${MAX_PASSWORD_BYTES} bytes`)
  .meta({ 'x-secret': true, example: 'correct-horse-battery' })

const newPassword = password.describe('New password with at least PASSWORD_MIN_LENGTH characters. At most 1,024 bytes.')

export const Credentials = z
  .strictObject({ username: Username, password: password.describe('Password of the user') })
  .meta({ id: 'Credentials' })

/** One-time code of a sign-in elsewhere, and the verifier that proves that it was issued to this client. */
export type SignInCode = { oidc_code: string; code_verifier: string }

/** Fields of each way to sign in, by the field that selects it. */
const WAYS = {
  username: ['username', 'password'],
  oidc_code: ['oidc_code', 'code_verifier'],
  sign_in_link: ['sign_in_link'],
} as const

export const SignInInput = z
  .strictObject({
    ...Credentials.partial().shape,
    oidc_code: z
      .string()
      .min(1)
      .max(128)
      .optional()
      .describe('One-time code of a sign-in with a company account; replaces username and password'),
    code_verifier: z
      .string()
      .regex(/^[\w.~-]{43,128}$/, 'must be 43 to 128 letters, digits or -._~')
      .optional()
      .describe('Verifier whose SHA-256 hash was the code_challenge of the sign-in'),
    sign_in_link: z
      .string()
      .min(1)
      .max(1024)
      .optional()
      .describe('Token of a sign-in link, which works once; replaces username and password'),
  })
  .superRefine((body, context) => {
    const way =
      body.sign_in_link !== undefined
        ? 'sign_in_link'
        : WAYS.oidc_code.some(name => body[name] !== undefined)
          ? 'oidc_code'
          : 'username'
    const fields: readonly string[] = WAYS[way]
    for (const name of Object.values(WAYS).flat()) {
      const isGiven = body[name] !== undefined
      if (fields.includes(name) && !isGiven)
        context.addIssue({ code: 'custom', path: [name], message: 'is required', params: { code: 'REQUIRED' } })
      if (!fields.includes(name) && isGiven)
        context.addIssue({ code: 'custom', path: [name], message: `cannot be combined with ${way}` })
    }
  })
  .meta({ id: 'SignInInput', example: { username: 'ada', password: 'correct-horse-battery' } })
const displayName = z
  .string()
  .trim()
  .min(1)
  .max(120)
  .refine(name => !CONTROL.test(name), 'must not contain control characters')
  .nullable()
  .describe('Name that end users see when the user writes to them as an operator')

export const UserInput = z
  .strictObject({
    username: Username,
    password: newPassword,
    role: role.default('user'),
    display_name: displayName.optional(),
  })
  .meta({ id: 'UserInput' })
export const UserPatch = patchBody('UserPatch', {
  username: Username,
  role,
  display_name: displayName,
  disabled: z.boolean().describe('Whether all credentials of the user are refused'),
})
export const OwnPasswordInput = z
  .strictObject({ current_password: password.describe('Current password'), new_password: newPassword })
  .meta({ id: 'OwnPasswordInput' })
export const PasswordInput = z.strictObject({ new_password: newPassword }).meta({ id: 'PasswordInput' })

/** Validates the length of a new password. @throws VALIDATION_FAILED for the field `path` */
export function checkNewPassword(text: string, minLength: number, path: string): void {
  if ([...text].length < minLength)
    raiseInvalid({ code: 'TOO_SMALL', path, message: `must have at least ${minLength} characters` })
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
