import { z } from 'zod'
import { Comparison } from '../api/compare.ts'
import { type KindRow, toPascalCase, withArticle } from '../api/kind.ts'
import { pageOf, textFilter } from '../api/lists.ts'
import { type Context, itemOperation, type Operation, type OperationBase } from '../api/operation.ts'
import type { Services } from '../base/services.ts'
import { expectedVersion, requireVersion, versionAuthor, versionLabel, versionNumber, versionQuery } from './version.ts'
import type { Versions } from './versioned.ts'

/** Parts of a restore that differ between kinds. */
export type Restore<Row> = Pick<
  Partial<OperationBase<undefined, undefined>>,
  'description' | 'alsoActions' | 'admit' | 'answers' | 'raises'
> & {
  /** Whether the body may have `expected_version`. */
  expects?: boolean
  /** Compiles the schemas of the restored row before the transaction in which `check` needs them. */
  prepare?: (next: Row, services: Services) => Promise<unknown>
  /** Refuses the restored row `next`; not called if its configuration is the current one. */
  check?: (next: Row, context: Context<any, any, Row, unknown> & { stored: Row }) => unknown
  /** Returns additional fields of the response, such as warnings. */
  show?: (row: Row, context: Context<any, any, Row, unknown>) => object | Promise<object>
}

const RestoreInput = z.strictObject({
  label: versionLabel.describe('Label of the new version. Default `restored from v<n>`.'),
  expected_version: expectedVersion,
})

/** Returns the operations on the versions of a kind: list, compare, get and restore. */
export function versionOperations<Row extends KindRow>(
  versions: Versions,
  at: { path: string; tag: string },
  { expects = false, prepare, check, show, ...overrides }: Restore<Row>,
): Operation[] {
  const { kind, record, fields } = versions
  const noun = toPascalCase(kind.name)
  const words = withArticle(kind.name.replaceAll('_', ' '))
  const module = at.path.split('/')[1]
  const path = `${at.path}/{${kind.name}_id}/versions`
  const body = expects ? RestoreInput : RestoreInput.omit({ expected_version: true })
  const reads = { method: 'get', tag: at.tag } as const
  return [
    itemOperation(kind, {
      ...reads,
      id: `list${noun}Versions`,
      path,
      summary: `List versions of ${words}`,
      description:
        'Newest first. A page contains at most 16 MiB of configurations; if it is cut, `limit` is the number of versions returned.',
      action: `${module}:List${noun}Versions`,
      query: z.object({ label: textFilter.describe('Exact match of `label`') }),
      paged: true,
      answers: { 200: pageOf(record) },
      run: ({ resource, db, page, query }) => versions.list(db, page, resource.id, query.label),
    }),
    itemOperation(kind, {
      ...reads,
      id: `compare${noun}Versions`,
      path: `${path}/compare`,
      summary: `Compare two versions of ${words}`,
      description: 'Returns the added, removed and changed fields by path.',
      action: `${module}:Get${noun}Version`,
      query: z.object({
        from: versionQuery.describe('Version to compare from. Default: the version before `to`.'),
        to: versionQuery.describe('Version to compare to. Default: the newest version.'),
      }),
      answers: { 200: Comparison },
      run: ({ services, resource, db, query }) => versions.compare(services, db, resource, query),
    }),
    itemOperation(kind, {
      ...reads,
      id: `get${noun}Version`,
      path: `${path}/{version}`,
      summary: `Get a version of ${words}`,
      description: 'Returns the configuration as of the version.',
      action: `${module}:Get${noun}Version`,
      answers: { 200: record },
      run: ({ resource, db, params }) => versions.get(db, resource.id, versionNumber(params.version)),
    }),
    itemOperation(kind, {
      id: `restore${noun}Version`,
      method: 'post',
      path: `${path}/{version}/restore`,
      summary: `Restore ${words} version`,
      description: `Writes ${fields.map(name => `\`${name}\``).join(', ')} of that version as the next one, validated and authorized like a new write. Other fields are unchanged. Without a difference no version is created.`,
      tag: at.tag,
      action: `${module}:Restore${noun}Version`,
      body: body.meta({ id: `${noun}RestoreInput` }) as typeof RestoreInput,
      bodyOptional: true,
      answers: { 200: kind.record },
      ...overrides,
      async prepare({ db, services, resource, params }) {
        const [version] = prepare ? await versions.find(db, resource.id, [versionNumber(params.version)]) : []
        if (version) await prepare?.({ ...resource, ...versions.read(version.config) }, services)
      },
      async run(context) {
        const { tx, caller, audit, params, body } = context
        const number = versionNumber(params.version)
        const stored = await kind.lock(tx, context.resource.id)
        requireVersion(stored, body?.expected_version)
        const next = { ...stored, ...versions.read((await versions.get(tx, stored.id, number)).config) }
        let row = stored
        if (!versions.same(stored, next)) {
          await check?.(next, { ...context, stored })
          const by = versionAuthor(caller, body?.label ?? `restored from v${number}`)
          row = await versions.change(tx, stored, kind.changes(stored, next), by)
          audit.detail.version = row.version
          tx.emit(kind, 'updated', row)
        }
        return { ...kind.present(row), ...(await show?.(row, context)) }
      },
    }),
  ]
}
