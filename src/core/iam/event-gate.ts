import { type MatchContext, parseNames, statementMatches, type TagConditions } from './match.ts'
import type { CompiledDocument } from './policy.ts'

/**
 * Whether a document explicitly allows an event, for webhooks and event triggers. Event patterns and `*` match, action
 * patterns do not. There is no principal: its condition keys are missing.
 * @param event.aliases other names of the event; a pattern may match any of them
 */
export function eventAllowed(
  document: CompiledDocument,
  event: { name: string; aliases?: readonly string[]; srn: string; type: string; tags: TagConditions | null },
): boolean {
  const names = parseNames([event.srn])
  if (!document.valid || !names) return false
  const context: MatchContext = { type: event.type, facts: null }
  let allowed = false
  for (const statement of document.statements) {
    const matched = [event.name, ...(event.aliases ?? [])].some(name =>
      statementMatches(statement, name, names, context, event.tags),
    )
    if (!matched) continue
    if (statement.deny) return false
    allowed = true
  }
  return allowed
}
