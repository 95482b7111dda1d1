import { z } from 'zod'
import { storabilityProblem } from '../../core/api/validate.ts'

const issuer = z
  .string()
  .max(2048)
  .refine(text => /^https?:\/\/[^?#\s]+$/.test(text), 'must be an http or https address without query and fragment')
  .describe('Issuer of the identity provider, exactly as its tokens name it')
  .meta({ example: 'https://login.example.com' })

const subject = z
  .string()
  .min(1)
  .max(255)
  .describe('Account at that provider: the claim `sub` of its tokens, case-sensitive')

export const UserIdentity = z
  .object({
    issuer,
    subject,
    label: z.string().nullable().describe('Name of the account at its last sign-in'),
    created_at: z.iso.datetime().describe('When the account was linked to the user'),
    last_login_at: z.iso.datetime().nullable().describe('When the user last signed in with the account'),
  })
  .meta({ id: 'UserIdentity' })
export type UserIdentity = z.output<typeof UserIdentity>

/** An account at an identity provider. */
export type Account = Pick<UserIdentity, 'issuer' | 'subject'>

export const UserIdentityInput = z.strictObject({ issuer, subject }).meta({ id: 'UserIdentityInput' })

export const UserIdentityQuery = z.object({ issuer, subject })

/** The claims of an account that a sign-in proved; issuer and subject are valid. */
export type AccountClaims = Account & { claims: Record<string, unknown> }

export const isAccount = (account: { issuer?: unknown; subject?: unknown }): boolean =>
  UserIdentityQuery.safeParse(account).success && storabilityProblem(account) === null

/** Why a sign-in ended without a code; the page that began it reads it from its address. */
export type SignInError = 'access_denied' | 'no_account' | 'provider_error' | 'expired'
