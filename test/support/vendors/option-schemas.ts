import fs from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { z } from 'zod'

const ROOT = path.resolve(import.meta.dirname, '../../..')

/** Schemas of options by the API that takes them: package, file in it, and name of the constant. */
const SOURCES = {
  'openai responses': [
    'openai',
    'responses/openai-responses-language-model-options',
    'openaiLanguageModelResponsesOptionsSchema',
  ],
  'openai chat': ['openai', 'chat/openai-chat-language-model-options', 'openaiLanguageModelChatOptions'],
  anthropic: ['anthropic', 'anthropic-language-model-options', 'anthropicLanguageModelOptions'],
  google: ['google', 'google-language-model-options', 'googleLanguageModelOptions'],
  xai: ['xai', 'responses/xai-responses-language-model-options', 'xaiLanguageModelResponsesOptions'],
  groq: ['groq', 'groq-chat-language-model-options', 'groqLanguageModelChatOptions'],
  bedrock: ['amazon-bedrock', 'amazon-bedrock-chat-language-model-options', 'amazonBedrockLanguageModelChatOptions'],
  compatible: [
    'openai-compatible',
    'chat/openai-compatible-chat-language-model-options',
    'openaiCompatibleLanguageModelChatOptions',
  ],
} as const

/** Returns the schemas of the options that the installed packages read, as JSON Schemas, from their sources. */
export async function installedOptionSchemas(): Promise<Record<string, object>> {
  const cache = path.join(ROOT, 'node_modules/.cache')
  fs.mkdirSync(cache, { recursive: true })
  const folder = fs.mkdtempSync(path.join(cache, 'option-schemas-'))
  try {
    const entries = await Promise.all(
      Object.entries(SOURCES).map(async ([api, [name, file, constant]]) => {
        const source = path.join(ROOT, 'node_modules/@ai-sdk', name, 'src', `${file}.ts`)
        const script = writeModule(source, path.join(folder, name))
        const loaded = (await import(pathToFileURL(script).href)) as Record<string, unknown>
        return [api, jsonSchema(loaded[constant])] as const
      }),
    )
    return Object.fromEntries(entries)
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
}

/** Writes a file of a package and the files that it imports as JavaScript. The schemas need zod objects, not the package's wrapper. */
function writeModule(source: string, folder: string): string {
  const text = stripTypeScriptTypes(fs.readFileSync(source, 'utf8'), { mode: 'transform' })
    .replace(
      /import\s*\{[^}]*\}\s*from\s*'@ai-sdk\/provider-utils';?/,
      'const lazySchema = get => get(), zodSchema = schema => schema;',
    )
    .replaceAll(/from '(\.[^']+)'/g, (_, relative: string) => {
      const imported = writeModule(path.resolve(path.dirname(source), `${relative}.ts`), folder)
      return `from '${pathToFileURL(imported).href}'`
    })
  const target = path.join(folder, `${path.basename(source, '.ts')}.mjs`)
  fs.mkdirSync(folder, { recursive: true })
  fs.writeFileSync(target, text)
  return target
}

function jsonSchema(schema: unknown): object {
  const { $schema: _, ...rest } = z.toJSONSchema(schema as z.ZodType, { io: 'input', unrepresentable: 'any' })
  return rest
}
