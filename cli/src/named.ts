import type { Caller } from './call.ts'
import { EXIT, Failure } from './failure.ts'
import { isId } from './ids.ts'
import { interruption } from './interrupt.ts'

/** Returns the record of a list with exactly this name; undefined without one. */
export async function findByName(caller: Caller, listId: string, name: string): Promise<any> {
  const list = await caller.list(caller.commandById(listId), { name }, { signal: interruption })
  for await (const item of list) if (item.name === name) return item
  return undefined
}

/** Returns the id of a record that is given by id or name. */
export async function idOf(caller: Caller, listId: string, choice: string): Promise<string> {
  if (isId(choice)) return choice
  const found = await findByName(caller, listId, choice)
  if (!found) {
    const { words } = caller.commandById(listId)
    throw new Failure(
      `there is no ${words[0].replace(/s$/, '')} ${choice}`,
      EXIT.missing,
      `Try: muster ${words.join(' ')}`,
    )
  }
  return found.id
}
