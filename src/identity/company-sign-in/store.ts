import { z } from 'zod'
import { pageResult } from '#core/api/lists.ts'
import type { Page } from '#core/api/operation.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type Account, UserIdentity } from './model.ts'

const columns = sql.fragment`t.issuer, t.subject, t.label, t.created_at, t.last_login_at`
const identityRow = sql.type(UserIdentity)

const accountCondition = ({ issuer, subject }: Account) => sql.fragment`t.issuer = ${issuer} and t.subject = ${subject}`

/** Returns a page of a user's identities, newest first. Index user_identities_user. */
export const listIdentities = (db: Queryable, bounds: Page, userId: string) =>
  pageResult<UserIdentity>(
    { db, page: bounds },
    {
      columns,
      from: sql.fragment`user_identities t`,
      rows: sql.fragment`t.user_id = ${userId}`,
      time: sql.fragment`t.created_at`,
      order: sql.fragment`t.created_at desc, t.issuer, t.subject`,
      present: row => row,
    },
  )

/** Links an account to a user or returns the existing link; null if it is linked to another user. Primary key. */
export const linkIdentity = (
  db: Queryable,
  { issuer, subject, user_id, label }: Account & { user_id: string; label: string | null },
): Promise<UserIdentity | null> =>
  db.maybeOne(identityRow`
    insert into user_identities as t (issuer, subject, user_id, label) values (${issuer}, ${subject}, ${user_id}, ${label})
    on conflict (issuer, subject) do update set label = coalesce(excluded.label, t.label) where t.user_id = excluded.user_id
    returning ${columns}`)

/** Deletes a link and returns whether it existed. Primary key. */
export const unlinkIdentity = async (db: Queryable, linked: Account, userId: string): Promise<boolean> =>
  (
    await db.query(
      voidStatement`delete from user_identities t where ${accountCondition(linked)} and t.user_id = ${userId}`,
    )
  ).rowCount > 0

const LinkedUser = z.object({ user_id: z.string(), username: z.string(), is_disabled: z.boolean() })
export type LinkedUser = z.output<typeof LinkedUser>

/** Returns the user linked to an account and updates the link's label. Primary key. */
export const findLinkedUser = (db: Queryable, linked: Account, label: string | null): Promise<LinkedUser | null> =>
  db.maybeOne(sql.type(LinkedUser)`
    with labelled as (
      update user_identities t set label = ${label} where ${accountCondition(linked)} and t.label is distinct from ${label}
    )
    select u.id as user_id, u.username, u.disabled_at is not null as is_disabled
    from user_identities t join users u on u.id = t.user_id where ${accountCondition(linked)}`)

/** Serializes sign-ins of an account until the transaction ends, so that it is provisioned only once. */
export const lockAccount = (db: Queryable, { issuer, subject }: Account) =>
  db.query(sql.type(z.object({ locked: z.string() }))`
    select pg_advisory_xact_lock(hashtextextended(${`${issuer} ${subject}`}, 0)) as locked`)

export const recordIdentityLogin = (db: Queryable, linked: Account, now: Date) =>
  db.query(voidStatement`
    update user_identities t set last_login_at = ${now.toISOString()}::timestamptz where ${accountCondition(linked)}`)

/**
 * Inserts a sign-in; false if the network has reached its limit of unfinished ones. Concurrent inserts in other
 * processes may exceed the limit. Index oidc_logins_network.
 */
export const insertLogin = async (
  db: Queryable,
  login: {
    state_hash: Buffer
    cookie_hash: Buffer
    network: string
    return_to: string
    code_challenge: string
    expires_at: Date
  },
  { now, limit }: { now: Date; limit: number },
): Promise<boolean> =>
  (
    await db.query(voidStatement`
      insert into oidc_logins (state_hash, cookie_hash, network, return_to, code_challenge, expires_at)
      select ${sql.binary(login.state_hash)}, ${sql.binary(login.cookie_hash)}, ${login.network}, ${login.return_to},
        ${login.code_challenge}, ${login.expires_at.toISOString()}::timestamptz
      where (
        select count(*) from oidc_logins
        where network = ${login.network} and expires_at > ${now.toISOString()}::timestamptz
      ) < ${limit}`)
  ).rowCount > 0

const AnsweredLogin = z.object({ return_to: z.string(), is_expired: z.boolean() })
type AnsweredLogin = z.output<typeof AnsweredLogin>

/** Claims the sign-in of a state and a cookie for its only response; null if there is none. Primary key. */
export const claimLogin = (
  db: Queryable,
  { stateHash, cookieHash, now }: { stateHash: Buffer; cookieHash: Buffer; now: Date },
): Promise<AnsweredLogin | null> =>
  db.maybeOne(sql.type(AnsweredLogin)`
    update oidc_logins set answered_at = ${now.toISOString()}::timestamptz
    where state_hash = ${sql.binary(stateHash)} and cookie_hash = ${sql.binary(cookieHash)} and answered_at is null
    returning return_to, expires_at <= ${now.toISOString()}::timestamptz as is_expired`)

/** Stores the one-time code of a claimed sign-in. Primary key. */
export const insertCode = (
  db: Queryable,
  stateHash: Buffer,
  { code_hash, issuer, subject, expires_at }: Account & { code_hash: Buffer; expires_at: Date },
) =>
  db.query(voidStatement`
    update oidc_logins set code_hash = ${sql.binary(code_hash)}, issuer = ${issuer}, subject = ${subject},
      expires_at = ${expires_at.toISOString()}::timestamptz
    where state_hash = ${sql.binary(stateHash)}`)

const LoginCode = z.object({
  issuer: z.string(),
  subject: z.string(),
  user_id: z.string(),
  code_challenge: z.string(),
})

/** Returns a redeemable code with its account and user. Index of code_hash. */
export const findCode = (db: Queryable, codeHash: Buffer, now: Date): Promise<z.output<typeof LoginCode> | null> =>
  db.maybeOne(sql.type(LoginCode)`
    select t.issuer, t.subject, t.user_id, l.code_challenge
    from oidc_logins l join user_identities t on t.issuer = l.issuer and t.subject = l.subject
    where l.code_hash = ${sql.binary(codeHash)} and l.expires_at > ${now.toISOString()}::timestamptz`)

/** Deletes a code and returns whether this request was the one to redeem it. Index of code_hash. */
export const consumeCode = async (db: Queryable, codeHash: Buffer): Promise<boolean> =>
  (await db.query(voidStatement`delete from oidc_logins where code_hash = ${sql.binary(codeHash)}`)).rowCount > 0

/** Deletes up to `limit` expired sign-ins and codes and returns their number. Index oidc_logins_expires. */
export const deleteExpiredLogins = async (db: Queryable, { now, limit }: { now: Date; limit: number }) =>
  (
    await db.query(voidStatement`
      delete from oidc_logins where state_hash in (
        select state_hash from oidc_logins where expires_at <= ${now.toISOString()}::timestamptz
        limit ${limit} for update skip locked)`)
  ).rowCount
