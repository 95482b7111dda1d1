import { between, page } from '../../core/api/lists.ts'
import type { Page } from '../../core/api/operation.ts'
import { type Fragment, type Queryable, sql, substring } from '../../core/db/sql.ts'
import { presentUser, type Role, type UserRow, users } from './model.ts'

export type SignInRow = {
  id: string
  username: string
  role: Role
  password_hash: string
  token_version: number
  disabled_at: string | null
}

/** Holds off every other bootstrap until the transaction ends. */
export const lockBootstrap = (db: Queryable) =>
  db.query(sql.unsafe`select pg_advisory_xact_lock(hashtext('muster.bootstrap'))`)

export const anyUser = (db: Queryable): Promise<boolean> => db.exists(sql.unsafe`select 1 from users`)

/** Makes a user; null when the name is taken. Index users_username. */
export const insertUser = (
  db: Queryable,
  user: { id: string; username: string; role: Role; password_hash: string },
): Promise<UserRow | null> =>
  db.maybeOne(sql.unsafe`
    insert into users as t (id, username, role, password_hash)
    values (${user.id}, ${user.username}, ${user.role}, ${user.password_hash})
    on conflict do nothing
    returning ${users.columns}`) as Promise<UserRow | null>

/** The page of users, filtered by part of the name and by role. The table is small and read as a whole. */
export const listUsers = (db: Queryable, bounds: Page, filter: { username?: string; role?: Role }) =>
  page<UserRow>(
    { db, page: bounds },
    {
      columns: users.columns,
      from: sql.fragment`users t`,
      where: [
        filter.username !== undefined && sql.fragment`t.username ilike ${substring(filter.username)}`,
        filter.role !== undefined && sql.fragment`t.role = ${filter.role}`,
        between(sql.fragment`t.created_at`, bounds),
      ],
      order: sql.fragment`t.created_at desc, t.id desc`,
      present: presentUser,
    },
  )

/** What signing in compares, with the lockout of the name in lower case; the name need not be anyone's. */
export const signInFacts = (
  db: Queryable,
  username: string,
  now: Date,
): Promise<{ name: string; user: SignInRow | null; locked: boolean }> =>
  db.one(sql.unsafe`
    select name.key as name, to_jsonb(u) as user, coalesce(f.locked_until > ${now.toISOString()}::timestamptz, false) as locked
    from (values (lower(${username}::text))) as name (key)
    left join lateral (
      select id, username, role, password_hash, token_version, disabled_at from users where lower(username) = name.key
    ) u on true
    left join login_failures f on f.username = name.key`) as Promise<{
    name: string
    user: SignInRow | null
    locked: boolean
  }>

/** Whether the name of a user, alias `u`, is not locked. */
const unlocked = (now: Date): Fragment => sql.fragment`not exists (
  select 1 from login_failures f
  where f.username = lower(u.username) and f.locked_until > ${now.toISOString()}::timestamptz)`

/**
 * Notes a success; false when the user changed since the password was compared, or when the name was locked meanwhile:
 * guesses that were sent before the lock are worth no more than those that come after it.
 */
export const noteSignIn = async (
  db: Queryable,
  user: Pick<SignInRow, 'id' | 'token_version'>,
  now: Date,
  newHash: string | null,
): Promise<boolean> =>
  (await db.maybeOneFirst(sql.unsafe`
    with noted as (
      update users u set last_login_at = ${now.toISOString()}::timestamptz, password_hash = coalesce(${newHash}::text, password_hash)
      where u.id = ${user.id} and u.token_version = ${user.token_version} and u.disabled_at is null and ${unlocked(now)}
      returning lower(u.username) as username
    ), forgotten as (
      delete from login_failures where username in (select username from noted)
    )
    select 1 from noted`)) !== null

/** Ends the lockout of a user's name. */
export const forgetFailures = (db: Queryable, username: string) =>
  db.query(sql.unsafe`delete from login_failures where username = lower(${username}::text)`)

/**
 * Counts a failure: the tenth in a row inside the window locks the name, given in lower case. Failures older than the
 * window start anew, and a few stale rows of other names go with each call, so that guessed names do not pile up.
 * Returns how many failures there are now.
 */
export const countFailure = (
  db: Queryable,
  name: string,
  rule: { now: Date; limit: number; windowSeconds: number },
): Promise<number> => {
  const now = sql.fragment`${rule.now.toISOString()}::timestamptz`
  const window = sql.fragment`make_interval(secs => ${rule.windowSeconds})`
  return db.oneFirst(sql.unsafe`
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
    returning failures`) as Promise<number>
}

/** Attempts that are audited together. */
export type Refused = {
  action: string
  /** In lower case; empty for names that nobody has. */
  username: string
  user_id: string | null
  attempts: number
  /** Time of the first. */
  since: string
  /** Address of the last. */
  ip: string | null
}

/** Adds attempts to those that no entry counts yet. In the order of the key everywhere: no deadlock. */
export const addRefused = (db: Queryable, refused: readonly Refused[]): Promise<unknown> =>
  db.query(sql.unsafe`
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
 * Takes attempts whose name had no entry for so long, and forgets names that had none since. Rows that another process
 * is at are left to it.
 */
export const takeRefused = (
  db: Queryable,
  rule: { now: Date; everyMs: number; limit: number },
): Promise<readonly Refused[]> => {
  const before = new Date(rule.now.getTime() - rule.everyMs).toISOString()
  return db.any(sql.unsafe`
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
    select action, username, user_id, attempts, since, ip from due where attempts > 0`) as Promise<readonly Refused[]>
}

/** Locks every admin, so that two of them cannot leave at once. In id order: no deadlock. Answers those that may sign in. */
export const lockAdmins = async (db: Queryable): Promise<string[]> =>
  (
    (await db.any(
      sql.unsafe`select id, disabled_at from users where role = 'admin' order by id for update`,
    )) as readonly { id: string; disabled_at: string | null }[]
  )
    .filter(admin => admin.disabled_at === null)
    .map(admin => admin.id)

/** Writes name, role and the disabled mark. `endTokens` ends the sessions of before. */
export const updateUser = (
  db: Queryable,
  id: string,
  user: { username: string; role: Role; disabled_at: string | null; endTokens: boolean },
): Promise<UserRow> =>
  db.one(sql.unsafe`
    update users t set username = ${user.username}, role = ${user.role}, disabled_at = ${user.disabled_at}::timestamptz,
      token_version = token_version + ${user.endTokens ? 1 : 0}, updated_at = now()
    where t.id = ${id}
    returning ${users.columns}`) as Promise<UserRow>

export const deleteUser = (db: Queryable, id: string) => db.query(sql.unsafe`delete from users where id = ${id}`)

/** What a change of the own password compares, with the lockout of the user's name; null when the user is gone. */
export const passwordFacts = (
  db: Queryable,
  id: string,
  now: Date,
): Promise<{ name: string; user: SignInRow; locked: boolean } | null> =>
  db.maybeOne(sql.unsafe`
    select lower(u.username) as name, to_jsonb(u) as user, coalesce(f.locked_until > ${now.toISOString()}::timestamptz, false) as locked
    from (select id, username, role, password_hash, token_version, disabled_at from users where id = ${id}) u
    left join login_failures f on f.username = lower(u.username)`) as Promise<{
    name: string
    user: SignInRow
    locked: boolean
  } | null>

/**
 * Sets the new password of a user who proved the old one, ends the tokens of before and forgets failed sign-ins. Null
 * when the user changed since the password was compared, or when the name was locked meanwhile.
 */
export const changePassword = (
  db: Queryable,
  user: Pick<SignInRow, 'id' | 'token_version'>,
  hash: string,
  now: Date,
): Promise<number | null> =>
  db.maybeOneFirst(sql.unsafe`
    with changed as (
      update users u set password_hash = ${hash}, token_version = token_version + 1, updated_at = now()
      where u.id = ${user.id} and u.token_version = ${user.token_version} and ${unlocked(now)}
      returning lower(u.username) as username, token_version
    ), forgotten as (
      delete from login_failures where username in (select username from changed)
    )
    select token_version from changed`) as Promise<number | null>

/** Sets a password and ends the tokens of before; null when the user is gone. */
export const setPassword = (db: Queryable, id: string, hash: string): Promise<number | null> =>
  db.maybeOneFirst(sql.unsafe`
    update users set password_hash = ${hash}, token_version = token_version + 1, updated_at = now()
    where id = ${id} returning token_version`) as Promise<number | null>

/** Ends every token of a user. */
export const endTokens = (db: Queryable, id: string) =>
  db.query(sql.unsafe`update users set token_version = token_version + 1, updated_at = now() where id = ${id}`)
