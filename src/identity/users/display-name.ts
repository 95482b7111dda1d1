import { type Fragment, sql } from '#core/db/sql.ts'

/**
 * Expression for the name of the user who acts on a row. Callers who may read the row see it: end users see the same name on
 * messages of operators. By the primary key.
 */
export const displayNameOf = (userId: Fragment): Fragment =>
  sql.fragment`(select u.display_name from users u where u.id = ${userId})`
