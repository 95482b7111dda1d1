import { type Fragment, sql } from '../db/sql.ts'

/** A column that holds values sealed by the secret box, and how to name the row each is sealed for. */
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

const registry: SealedColumn[] = []

/**
 * Declares an encrypted column, so that a change of the encryption key reaches it. Called by the module that owns the
 * table. `id` defaults to the column `id`, `project` to the column `project_id`.
 */
export function sealedColumn(
  declaration: Omit<SealedColumn, 'id' | 'project'> & Partial<Pick<SealedColumn, 'id' | 'project'>>,
): void {
  registry.push({ id: sql.fragment`id`, project: sql.fragment`project_id`, ...declaration })
}

/** Every encrypted column that the loaded modules declare. */
export const sealedColumns = (): readonly SealedColumn[] => registry
