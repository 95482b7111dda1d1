import { type Call, first, type Rule } from './rules.ts'
import { hasType, nodes } from './schemas.ts'
import { isSealed } from './signatures.ts'

/** Texts that the vendor takes in place of a signature that was lost. */
const SENTINELS = new Set(['skip_thought_signature_validator', 'context_engineering_is_the_way_to_go'])
const MIME = /^(image\/(png|jpeg|webp|heic|heif)|application\/(pdf|json)|text\/|audio\/|video\/)/

const contents = ({ body }: Call): any[] => body.contents ?? []
const parts = (content: any): any[] => content?.parts ?? []
const callsOf = (content: any): any[] => parts(content).filter(part => part.functionCall)
const resultsOf = (content: any): any[] => parts(content).filter(part => part.functionResponse)

export const declarationsOf = ({ body }: Pick<Call, 'body'>): { i: number; name: string; schema: any }[] =>
  (Array.isArray(body.tools) ? body.tools : body.tools ? [body.tools] : []).flatMap((tool: any) =>
    ((tool.functionDeclarations ?? []) as any[]).map((declared, i) => ({
      i,
      name: declared.name as string,
      schema: declared.parametersJsonSchema ?? declared.parameters,
    })),
  )

/** Index of the last text of the user, with which the current turn begins. */
const turnStart = (call: Call): number =>
  contents(call).findLastIndex(content => content.role === 'user' && resultsOf(content).length === 0)

const hasHostedTools = ({ body }: Call): boolean =>
  [body.tools ?? []].flat().some((tool: object) => 'googleSearch' in tool || 'codeExecution' in tool)

export const geminiRules: readonly Rule[] = [
  {
    name: 'hosted tools beside functions',
    source: 'S',
    date: '2025-12',
    message: 'Tool use with function calling is unsupported',
    breach: call =>
      !/gemini-3/.test(call.model) && hasHostedTools(call) && declarationsOf(call).length > 0 ? {} : null,
  },
  {
    name: 'hosted tools beside functions, combined',
    source: '1',
    date: '2026-06',
    message:
      'Please enable tool_config.include_server_side_tool_invocations to use Built-in tools with Function calling.',
    breach: call =>
      /gemini-3/.test(call.model) &&
      hasHostedTools(call) &&
      declarationsOf(call).length > 0 &&
      call.body.toolConfig?.includeServerSideToolInvocations !== true
        ? {}
        : null,
  },
  {
    name: 'no contents',
    source: '?',
    date: '2026-11',
    message: '* GenerateContentRequest.contents: contents is not specified\n',
    breach: call => (contents(call).length === 0 ? {} : null),
  },
  {
    name: 'role',
    source: '?',
    date: '2026-11',
    message: 'Please use a valid role: user, model.',
    breach: call => (contents(call).some(({ role }) => role !== 'user' && role !== 'model') ? {} : null),
  },
  {
    name: 'empty content',
    source: '?',
    date: '2026-11',
    message: '* GenerateContentRequest.contents[{i}].parts: contents.parts must not be empty.\n',
    breach: first(function* (call) {
      for (const [i, content] of contents(call).entries()) if (parts(content).length === 0) yield { i }
    }),
  },
  {
    name: 'call after user',
    source: 'S',
    date: '2026-05',
    message:
      'Please ensure that function call turn comes immediately after a user turn or after a function response turn.',
    breach: first(function* (call) {
      for (const [i, content] of contents(call).entries())
        if (callsOf(content).length > 0 && contents(call)[i - 1]?.role !== 'user') yield {}
    }),
  },
  {
    name: 'result after call',
    source: '?',
    date: '2026-11',
    message: 'Please ensure that function response turn comes immediately after a function call turn.',
    breach: first(function* (call) {
      for (const [i, content] of contents(call).entries())
        if (resultsOf(content).length > 0 && callsOf(contents(call)[i - 1]).length === 0) yield {}
    }),
  },
  {
    name: 'number of results',
    source: 'S',
    date: '2026-02',
    message:
      'Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.',
    breach: first(function* (call) {
      for (const [i, content] of contents(call).entries()) {
        const called = callsOf(content).length
        if (called > 0 && resultsOf(contents(call)[i + 1]).length !== called) yield {}
      }
    }),
  },
  {
    name: 'ends with user',
    source: '?',
    date: '2025-10',
    message: 'Please ensure that multiturn requests end with a user role or a function response.',
    breach: call => (contents(call).at(-1)?.role === 'model' ? {} : null),
  },
  {
    name: 'tool name',
    source: 'S',
    date: '2026-01',
    message:
      '* GenerateContentRequest.tools[0].function_declarations[{i}].name: Invalid function name. Must start with a letter or an underscore. Must be alphameric (a-z, A-Z, 0-9), underscores (_), dots (.) or dashes (-), with a maximum length of 64.\n',
    breach: first(function* (call) {
      for (const { i, name } of declarationsOf(call)) if (!/^[a-zA-Z_][a-zA-Z0-9_.-]{0,63}$/.test(name)) yield { i }
    }),
  },
  {
    name: 'array without items',
    source: 'S',
    date: '2026-07',
    message: '* GenerateContentRequest.tools[0].function_declarations[{i}].parameters.{path}.items: missing field.\n',
    breach: first(function* (call) {
      for (const { i, schema } of declarationsOf(call))
        for (const { path, schema: node } of nodes(schema))
          if ((hasType(node, 'array') || node.type === 'ARRAY') && !('items' in node))
            yield { i, path: path.join('.').replace(/properties\.([^.]+)/g, 'properties[$1]') }
    }),
  },
  {
    name: 'reference with siblings',
    source: 'S',
    date: '2026-05',
    message:
      "Schema.ref '{ref}' was set alongside unsupported fields. If a schema node has Schema.ref set, then only description and default can be set alongside it; other fields they would be replaced by the expanded reference.",
    breach: first(function* ({ body }) {
      const answer = body.generationConfig?.responseJsonSchema ?? body.generationConfig?.responseSchema
      for (const schema of [...declarationsOf({ body }).map(declared => declared.schema), answer])
        for (const { schema: node } of nodes(schema))
          if (node.$ref && Object.keys(node).some(key => !['$ref', 'description', 'default', '$defs'].includes(key)))
            yield { ref: node.$ref }
    }),
  },
  {
    name: 'arguments',
    source: '1',
    date: '2026-11',
    message:
      "Invalid value at 'contents[{i}].parts[0].function_call.args' (type.googleapis.com/google.protobuf.Struct), {args}",
    breach: first(function* (call) {
      for (const [i, content] of contents(call).entries())
        for (const {
          functionCall: { args },
        } of callsOf(content))
          if (args !== undefined && (typeof args !== 'object' || args === null || Array.isArray(args)))
            yield { i, args: JSON.stringify(args) }
    }),
  },
  {
    name: 'thought signature',
    source: '1',
    date: '2025-12',
    message:
      'Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and missing thought_signature may lead to degraded model performance. Additional data, function call `default_api:{name}` , position {i}.',
    breach: first(function* (call) {
      if (!/gemini-[3-9]/.test(call.model)) return
      for (const [i, content] of contents(call).entries()) {
        const [part] = callsOf(content)
        if (part && i > turnStart(call) && !part.thoughtSignature) yield { i, name: part.functionCall.name }
      }
    }),
  },
  {
    name: 'thought signature unchanged',
    source: '1',
    date: '2026-11',
    message: 'Corrupted thought signature.',
    breach: first(function* (call) {
      for (const content of contents(call))
        for (const { thoughtSignature: signature } of parts(content))
          if (signature !== undefined && !SENTINELS.has(signature) && !isSealed(signature)) yield {}
    }),
  },
  {
    name: 'media type',
    source: 'S',
    date: '2026-01',
    message: 'Unsupported MIME type: {type}',
    breach: first(function* (call) {
      for (const content of contents(call))
        for (const { inlineData } of parts(content).flatMap(part => [part, ...(part.functionResponse?.parts ?? [])]))
          if (inlineData && !MIME.test(inlineData.mimeType)) yield { type: inlineData.mimeType }
    }),
  },
]
