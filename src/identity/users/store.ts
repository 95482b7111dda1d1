import { z } from 'zod'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type Role, roles, type UserRow, userKind } from './model.ts'

const SignInRow = z.object({
  id: z.string(),
  username: z.string(),
  role: z.enum(roles),
  /** Null for a user who signs in only with a company account. */
  password_hash: z.string().nullable(),
  token_version: z.int(),
  disabled_at: z.string().nullable(),
})
export type SignInRow = z.output<typeof SignInRow>

const TokenVersion = z.object({ token_version: z.int() })

/** Serializes bootstraps until the transaction ends. */
export const lockBootstrap = (db: Queryable) =>
  db.query(
    sql.type(z.object({ locked: z.string() }))`select pg_advisory_xact_lock(hashtext('muster.bootstrap')) as locked`,
  )

export const hasUsers = (db: Queryable): Promise<boolean> =>
  db.exists(sql.type(z.object({ exists: z.boolean() }))`select 1 from users`)

/** Inserts a user; null if the name is in use. Index users_username. */
export const insertUser = (
  db: Queryable,
  user: { id: string; username: string; role: Role; password_hash: string | null; display_name?: string | null },
): Promise<UserRow | null> =>
  db.maybeOne(userKind.sql`
    insert into users as t (id, username, role, password_hash, display_name)
    values (${user.id}, ${user.username}, ${user.role}, ${user.password_hash}, ${user.display_name ?? null})
    on conflict do nothing
    returning ${userKind.columns}`)

/** Number of usernames that may differ only by a numeric suffix. */
const MAX_NAMESAKES = 1000

/**
 * Returns the name or, if it is in use, the first free one with suffix `-2`, `-3`, etc.; null if there is none. Index
 * users_username.
 */
export const findFreeUsername = (db: Queryable, username: string): Promise<string | null> =>
  db.maybeOneFirst(sql.type(z.object({ name: z.string() }))`
    select c.name from (
      select n, ${username}::text || case n when 1 then '' else '-' || n end as name from generate_series(1, ${MAX_NAMESAKES}) n
    ) c
    where not exists (select from users u where lower(u.username) = lower(c.name))
    order by c.n limit 1`)

/** User to compare with a password, and the lockout of the name, in lower case. */
const PasswordFacts = z.object({ name: z.string(), user: SignInRow, locked: z.boolean() })
export type PasswordFacts = z.output<typeof PasswordFacts>

const SignInFacts = PasswordFacts.extend({ user: SignInRow.nullable() })

/** Returns the data for a sign-in; `user` is null for an unknown name. */
export const loadSignInFacts = (db: Queryable, username: string, now: Date): Promise<z.output<typeof SignInFacts>> =>
  db.one(sql.type(SignInFacts)`
    select name.key as name, to_jsonb(u) as user, coalesce(f.locked_until > ${now.toISOString()}::timestamptz, false) as locked
    from (values (lower(${username}::text))) as name (key)
    left join lateral (
      select id, username, role, password_hash, token_version, disabled_at from users where lower(username) = name.key
    ) u on true
    left join login_failures f on f.username = name.key`)

/** Condition: the name of the user with alias `u` is not locked. */
const isNameUnlocked = (now: Date): Fragment => sql.fragment`not exists (
  select 1 from login_failures f
  where f.username = lower(u.username) and f.locked_until > ${now.toISOString()}::timestamptz)`

/** Condition: the last sign-in of the user with alias `u` was at a time; null stands for none. */
const wasLastAt = (at: string | null): Fragment => sql.fragment`u.last_login_at is not distinct from ${at}::timestamptz`

/**
 * Records a sign-in; false if the user changed after the password was compared, or if the name was locked since:
 * guesses sent before the lock must not succeed after it. With `lastAt`, also false after another sign-in than that.
 */
export const recordSignIn = async (
  db: Queryable,
  user: Pick<SignInRow, 'id' | 'token_version'>,
  now: Date,
  newHash: string | null,
  { lastAt }: { lastAt?: string | null } = {},
): Promise<boolean> =>
  (await db.maybeOneFirst(sql.type(z.object({ noted: z.int() }))`
    with noted as (
      update users u set last_login_at = ${now.toISOString()}::timestamptz, password_hash = coalesce(${newHash}::text, password_hash)
      where u.id = ${user.id} and u.token_version = ${user.token_version} and u.disabled_at is null and ${isNameUnlocked(now)}
        and ${lastAt === undefined ? sql.fragment`true` : wasLastAt(lastAt)}
      returning lower(u.username) as username
    ), forgotten as (
      delete from login_failures where username in (select username from noted)
    )
    select 1 as noted from noted`)) !== null

/** Ends the lockout of a username. */
export const clearFailures = (db: Queryable, username: string) =>
  db.query(voidStatement`delete from login_failures where username = lower(${username}::text)`)

/**
 * Deletes up to `limit` failures that began before a time and no longer lock a name, and returns their number. Without
 * an index: each batch reads the table, which contains one day of guessed names.
 */
export const deleteFailures = async (
  db: Queryable,
  { before, now, limit }: { before: Date; now: Date; limit: number },
): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from login_failures where username in (
        select username from login_failures
        where first_failed_at < ${before.toISOString()}::timestamptz
          and (locked_until is null or locked_until < ${now.toISOString()}::timestamptz)
        limit ${limit} for update skip locked)`)
  ).rowCount

/**
 * Counts a failure and returns the current number of failures: the tenth consecutive one within the window locks the
 * name (in lower case). A failure after the window restarts the count. Each call also deletes a few stale rows of other
 * names, so that guessed names do not accumulate.
 */
export const countSignInFailure = (
  db: Queryable,
  name: string,
  rule: { now: Date; limit: number; windowSeconds: number },
): Promise<number> => {
  const now = sql.fragment`${rule.now.toISOString()}::timestamptz`
  const window = sql.fragment`make_interval(secs => ${rule.windowSeconds})`
  return db.oneFirst(sql.type(z.object({ failures: z.int() }))`
    with stale as (
      delete from login_failures where username in (
        select username from login_failures
        where username <> ${name} and first_failed_at < ${now} - ${window}
          and (locked_until is null or locked_until < ${now})
        limit 20 for update skip locked
      )
    )
    insert into login_failures as f (username, failures, first_failed_at) values (${name}, 1, ${now})
    on conflict (username) do update set
      failures = case when f.first_failed_at < ${now} - ${window} then 1 else f.failures + 1 end,
      first_failed_at = case when f.first_failed_at < ${now} - ${window} then ${now} else f.first_failed_at end,
      locked_until = case
        when f.first_failed_at >= ${now} - ${window} and f.failures + 1 >= ${rule.limit} then ${now} + ${window}
      end
    returning failures`)
}

/**
 * Attempts that are audited together. `username` is in lower case, and empty for unknown names; `since` is the time of
 * the first, `ip` the address of the last attempt.
 */
const FailedSignIns = z.object({
  action: z.string(),
  username: z.string(),
  user_id: z.string().nullable(),
  attempts: z.int(),
  since: z.string(),
  ip: z.string().nullable(),
})
export type FailedSignIns = z.output<typeof FailedSignIns>

/** Adds attempts to the counts that are not audited yet. Rows are locked in key order, to avoid deadlocks. */
export const addFailedSignIns = (db: Queryable, refused: readonly FailedSignIns[]): Promise<unknown> =>
  db.query(voidStatement`
    insert into refused_attempts as r (action, username, user_id, attempts, since, ip)
    select * from ${sql.unnest(
      refused.map(({ action, username, user_id, attempts, since, ip }) => [
        action,
        username,
        user_id,
        attempts,
        since,
        ip,
      ]),
      ['text', 'text', 'text', 'int8', 'timestamptz', 'text'],
    )} as n (action, username, user_id, attempts, since, ip) order by action, username
    on conflict (action, username) do update set attempts = r.attempts + excluded.attempts, user_id = excluded.user_id,
      since = case when r.attempts = 0 then excluded.since else r.since end, ip = excluded.ip`)

/**
 * Claims the attempts of names whose last audit entry is at least `everyMs` old, and deletes names without new
 * attempts. Skips rows locked by other processes.
 */
export const claimFailedSignIns = (
  db: Queryable,
  rule: { now: Date; everyMs: number; limit: number },
): Promise<readonly FailedSignIns[]> => {
  const before = new Date(rule.now.getTime() - rule.everyMs).toISOString()
  return db.any(sql.type(FailedSignIns)`
    with due as (
      select * from refused_attempts where audited_at is null or audited_at <= ${before}::timestamptz
      limit ${rule.limit} for update skip locked
    ), taken as (
      update refused_attempts r set attempts = 0, audited_at = ${rule.now.toISOString()}::timestamptz
      from due where r.action = due.action and r.username = due.username and due.attempts > 0
    ), idle as (
      delete from refused_attempts r using due
      where r.action = due.action and r.username = due.username and due.attempts = 0
    )
    select action, username, user_id, attempts, since, ip from due where attempts > 0`)
}

const Admin = SignInRow.pick({ id: true, disabled_at: true })

/**
 * Locks all admins in ID order, to avoid deadlocks, so that two concurrent changes cannot remove the last ones. Returns
 * the admins who may sign in.
 */
export const lockAdmins = async (db: Queryable): Promise<string[]> =>
  (await db.any(sql.type(Admin)`select id, disabled_at from users where role = 'admin' order by id for update`))
    .filter(({ disabled_at }) => disabled_at === null)
    .map(({ id }) => id)

/** Updates names, role and disabled state. `endTokens` ends existing sessions. */
export const updateUser = (
  db: Queryable,
  id: string,
  user: { username: string; role: Role; display_name: string | null; disabled_at: string | null; endTokens: boolean },
): Promise<UserRow> =>
  db.one(userKind.sql`
    update users t set username = ${user.username}, role = ${user.role}, display_name = ${user.display_name}, disabled_at = ${user.disabled_at}::timestamptz,
      token_version = token_version + ${user.endTokens ? 1 : 0}, updated_at = now()
    where t.id = ${id}
    returning ${userKind.columns}`)

/** Returns the data for a change of the user's own password; null if the user is deleted. */
export const findPasswordFacts = (db: Queryable, id: string, now: Date): Promise<PasswordFacts | null> =>
  db.maybeOne(sql.type(PasswordFacts)`
    select lower(u.username) as name, to_jsonb(u) as user, coalesce(f.locked_until > ${now.toISOString()}::timestamptz, false) as locked
    from (select id, username, role, password_hash, token_version, disabled_at from users where id = ${id}) u
    left join login_failures f on f.username = lower(u.username)`)

/**
 * Sets the new password of a user who proved the old one, ends existing tokens and deletes failed sign-ins. Null if the
 * user changed after the password was compared, or if the name was locked since.
 */
export const changePassword = (
  db: Queryable,
  user: Pick<SignInRow, 'id' | 'token_version'>,
  hash: string,
  now: Date,
): Promise<number | null> =>
  db.maybeOneFirst(sql.type(TokenVersion)`
    with changed as (
      update users u set password_hash = ${hash}, token_version = token_version + 1, updated_at = now()
      where u.id = ${user.id} and u.token_version = ${user.token_version} and ${isNameUnlocked(now)}
      returning lower(u.username) as username, token_version
    ), forgotten as (
      delete from login_failures where username in (select username from changed)
    )
    select token_version from changed`)

/** Sets a password and ends existing tokens; false if the user is deleted. */
export const setPassword = async (db: Queryable, id: string, hash: string): Promise<boolean> =>
  (
    await db.query(voidStatement`
      update users set password_hash = ${hash}, token_version = token_version + 1, updated_at = now() where id = ${id}`)
  ).rowCount > 0

/** Ends all tokens of a user. */
export const revokeTokens = (db: Queryable, id: string): Promise<unknown> =>
  db.query(voidStatement`update users set token_version = token_version + 1, updated_at = now() where id = ${id}`)
