import { type DecisionRequest, type Layer, tagSetsOf } from './decide.ts'
import { type MatchContext, type NamePattern, parseNames, statementMatches, type TagConditions } from './match.ts'
import { canonicalType } from './names.ts'

export type LayerExplanation = {
  kind: Layer['kind']
  decision: 'allow' | 'deny' | 'none'
  /** position in the layer, null when no statement decided */
  document_index: number | null
  /** position in the document, null when no statement decided or the document does not parse */
  statement_index: number | null
}

/**
 * Per layer, what it says about a request and which statement decided: the first matching Deny, else the first matching
 * Allow. Type spellings in names are folded. With several tag sets the least favourable one is explained.
 */
export function explain(layers: readonly Layer[], request: DecisionRequest): LayerExplanation[] {
  const names = (parseNames(request.names) ?? []).map(name => ({ ...name, type: canonicalType(name.type) }))
  const rank = { deny: 0, none: 1, allow: 2 }
  return layers.map(layer =>
    tagSetsOf(request)
      .map(tags => explainLayer(layer, request.action, names, request, tags))
      .reduce((worst, next) => (rank[next.decision] < rank[worst.decision] ? next : worst)),
  )
}

function explainLayer(
  layer: Layer,
  action: string,
  names: readonly NamePattern[],
  context: MatchContext,
  tags: TagConditions | null | undefined,
): LayerExplanation {
  const { kind } = layer
  let explanation: LayerExplanation = { kind, decision: 'none', document_index: null, statement_index: null }
  for (const [document_index, document] of layer.documents.entries()) {
    if (!document.valid) return { kind, decision: 'deny', document_index, statement_index: null }
    for (const statement of document.statements) {
      if (!statementMatches(statement, action, names, context, tags)) continue
      const decision = statement.deny ? 'deny' : 'allow'
      if (statement.deny) return { kind, decision, document_index, statement_index: statement.index }
      if (explanation.decision === 'none')
        explanation = { kind, decision, document_index, statement_index: statement.index }
    }
  }
  return explanation
}
