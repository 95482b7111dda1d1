import { z } from 'zod'
import type { Tx } from '../db/writer.ts'
import type { Caller } from '../iam/caller.ts'
import { raise, raiseInvalid } from './errors.ts'
import type { Kind, KindRow } from './kind.ts'
import { itemOperation, type Operation } from './operation.ts'
import { TagBag, type Tags } from './record.ts'

const MAX_TAGS = 50
const RESERVED = 'system.'

const key = z.string().min(1).max(128)
const value = z.string().max(256)

/** Reports what is wrong with tags that a caller wrote: reserved keys and too many of them. */
function checkBag(bag: Record<string, unknown>, context: z.core.$RefinementCtx): void {
  for (const name of Object.keys(bag)) {
    if (name.startsWith(RESERVED))
      context.addIssue({
        code: 'custom',
        params: { code: 'RESERVED_TAG_KEY' },
        path: [name],
        message: `keys starting ${RESERVED} are written by the platform`,
      })
  }
  if (Object.keys(bag).length > MAX_TAGS)
    context.addIssue({ code: 'custom', message: `must hold at most ${MAX_TAGS} keys`, path: [] })
}

/** Tags that a caller sends, in a body's `tags` or as the body of a PUT. */
export const TagInput = z
  .record(key, value)
  .superRefine(checkBag)
  .meta({ id: 'TagInput', example: { team: 'desk' } })

/** Tags to merge; null removes a key. */
const TagPatch = z
  .record(key, value.nullable())
  .superRefine(checkBag)
  .meta({ id: 'TagPatch', example: { team: 'desk', shift: null } })

/** The tags after a PUT: those sent, and what the platform wrote. */
export const replacedTags = (stored: Tags, sent: Tags): Tags => ({
  ...Object.fromEntries(Object.entries(stored).filter(([name]) => name.startsWith(RESERVED))),
  ...sent,
})

/** The tags after a PATCH. Raises VALIDATION_FAILED when there would be too many keys. */
function mergedTags(stored: Tags, sent: Record<string, string | null>): Tags {
  const merged = Object.fromEntries(
    Object.entries({ ...stored, ...sent }).filter((entry): entry is [string, string] => entry[1] !== null),
  )
  if (Object.keys(merged).filter(name => !name.startsWith(RESERVED)).length > MAX_TAGS)
    raiseInvalid({ code: 'INVALID_VALUE', path: '', message: `must hold at most ${MAX_TAGS} keys after the merge` })
  return merged
}

/**
 * GET, PUT and PATCH of `<path>/tags`. A write holds the row's lock from reading to writing, must be allowed with the
 * stored and with the resulting tags, and emits `event` with the record.
 * @param declaration.path path of the resource itself, for example `/actors/{actor_id}`
 * @param declaration.param path parameter that holds the id; default `<kind>_id`
 * @param declaration.read action of the GET
 * @param declaration.write action of the PUT and the PATCH
 * @param declaration.setTags stores the tags a caller sent and returns the row as `kind.find` does
 * @param declaration.event default `updated`; null emits nothing
 * @param declaration.onChange what else follows from a change, in the same transaction
 */
export function tagOperations<Row extends KindRow, Event extends string>(
  kind: Kind<Row, Event>,
  declaration: {
    path: string
    param?: string
    /** Name in operation ids; default the kind's. */
    noun?: string
    tag: string
    read: string
    write: string
    setTags(tx: Tx, row: Row, tags: Tags, caller: Caller): Promise<Row>
    event?: NoInfer<Event> | null
    onChange?(tx: Tx, row: Row): void | Promise<void>
  },
): Operation[] {
  const { param, tag, read, write, setTags, event, onChange } = declaration
  const path = `${declaration.path}/tags`
  const noun = kind.name.replaceAll('_', ' ')
  const title =
    declaration.noun ?? kind.name.replace(/(^|_)([a-z])/g, (_match, _gap, letter: string) => letter.toUpperCase())

  const change = async (
    context: { caller: Caller; tx: Tx; resource: Row; allowTags(tags: Tags): void },
    result: (stored: Tags) => Tags,
  ): Promise<Tags> => {
    const { caller, tx, resource } = context
    const row = await kind.find(tx, resource.id, true)
    if (!row) return raise(kind.notFound, { meta: { id: resource.id } })
    const tags = result(row.tags ?? {})
    context.allowTags(tags)
    const changed = await setTags(tx, row, tags, caller)
    if (event !== null) tx.emit(kind, event ?? ('updated' as Event), changed)
    await onChange?.(tx, changed)
    return changed.tags ?? {}
  }

  return [
    itemOperation(kind, {
      id: `get${title}Tags`,
      method: 'get',
      path,
      param,
      summary: `Read the tags of one ${noun}`,
      description: `Answers the tags alone; keys starting ${RESERVED} are the platform's.`,
      tag,
      action: read,
      answers: { 200: TagBag },
      run: async ({ resource }) => resource.tags ?? {},
    }),
    itemOperation(kind, {
      id: `replace${title}Tags`,
      method: 'put',
      path,
      param,
      summary: `Replace the tags of one ${noun}; keys starting ${RESERVED} stay`,
      description: 'The action must be allowed with the tags as they are and as they become.',
      tag,
      action: write,
      body: TagInput,
      answers: { 200: TagBag },
      run: context => change(context, stored => replacedTags(stored, context.body)),
    }),
    itemOperation(kind, {
      id: `merge${title}Tags`,
      method: 'patch',
      path,
      param,
      summary: `Merge tags into those of one ${noun}; null removes a key`,
      description: 'The action must be allowed with the tags as they are and as they become.',
      tag,
      action: write,
      body: TagPatch,
      answers: { 200: TagBag },
      run: context => change(context, stored => mergedTags(stored, context.body)),
    }),
  ]
}
