import { type DecisionRequest, type Layer, tagSetsOf } from './decide.ts'
import { type MatchContext, type NamePattern, parseNames, statementMatches, type TagConditions } from './match.ts'
import { canonicalType } from './names.ts'

export type LayerExplanation = {
  kind: Layer['kind']
  decision: 'allow' | 'deny' | 'none'
  /** Index in the layer; null if no statement decided. */
  document_index: number | null
  /** Index in the document; null if no statement decided or the document is invalid. */
  statement_index: number | null
}

/**
 * Returns the decision of each layer on a request, and the deciding statement: the first matching Deny, otherwise the first
 * matching Allow. Type spellings in names are normalized. Of several tag sets, the least favourable is explained.
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
