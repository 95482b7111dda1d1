import { resourceType } from '#core/api/resource-type.ts'
import { contextKeyProblems } from './check.ts'
import { type GraphDefinition, orchestrationKind } from './model.ts'
import { graphIn } from './operations.ts'
import { validateGraph } from './validate.ts'

export const orchestrationType = resourceType(orchestrationKind, {
  // Managed rows, which callers cannot address, are not resources.
  find: orchestrationKind.find,
  check(properties) {
    if (!properties.nodes || !properties.edges) return []
    const definition = graphIn(properties as Partial<GraphDefinition>)
    return [...validateGraph(definition).problems, ...contextKeyProblems(definition.nodes)]
  },
})
