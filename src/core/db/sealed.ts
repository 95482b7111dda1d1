import { declarations } from '../base/declarations.ts'
import { type Fragment, sql } from './sql.ts'

/** A column with sealed values, and the expressions for the row that each is sealed for. */
export type SealedColumn = {
  table: string
  column: string
  /** Kind in the authenticated data of the value. */
  kind: string
  /** Unique id of the row in the authenticated data, over the table's columns. */
  id: Fragment
  /** Project of the row in the authenticated data; null for rows of the deployment. */
  project: Fragment
}

/** All sealed columns of the process, which a key rotation reencrypts. */
export const sealedColumns = declarations<SealedColumn>('sealed column', ({ table, column }) => `${table}.${column}`)

/** Declares a sealed column. `id` defaults to the column `id`, `project` to the column `project_id`. */
export const sealedColumn = (
  declaration: Omit<SealedColumn, 'id' | 'project'> & Partial<Pick<SealedColumn, 'id' | 'project'>>,
): SealedColumn => ({ id: sql.fragment`id`, project: sql.fragment`project_id`, ...declaration })
