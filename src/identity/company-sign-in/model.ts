import { z } from 'zod'
import { storabilityProblem } from '#core/api/validate.ts'

const issuer = z
  .string()
  .max(2048)
  .refine(text => /^https?:\/\/[^?#\s]+$/.test(text), 'must be an http or https URL without query and fragment')
  .describe('Issuer of the identity provider, exactly as in the `iss` claim of its tokens')
  .meta({ example: 'https://login.example.com' })

const subject = z
  .string()
  .min(1)
  .max(255)
  .describe('Account at the provider: the `sub` claim of its tokens, case-sensitive')

export const UserIdentity = z
  .object({
    issuer,
    subject,
    label: z.string().nullable().describe('Account name at the last sign-in'),
    created_at: z.iso.datetime().describe('Time at which the account was linked'),
    last_login_at: z.iso.datetime().nullable().describe('Time of the last sign-in with the account'),
  })
  .meta({ id: 'UserIdentity' })
export type UserIdentity = z.output<typeof UserIdentity>

/** An account at an identity provider. */
export type Account = Pick<UserIdentity, 'issuer' | 'subject'>

export const UserIdentityInput = z.strictObject({ issuer, subject }).meta({ id: 'UserIdentityInput' })

export const UserIdentityQuery = z.object({ issuer, subject })

/** Claims of an account proved by a sign-in; issuer and subject are valid. */
export type AccountClaims = Account & { claims: Record<string, unknown> }

export const isAccount = (account: { issuer?: unknown; subject?: unknown }): boolean =>
  UserIdentityQuery.safeParse(account).success && storabilityProblem(account) === null

/** Reason why a sign-in ended without a code; passed to the starting page in the URL fragment. */
export type SignInError = 'access_denied' | 'no_account' | 'provider_error' | 'expired'
