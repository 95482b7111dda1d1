import searchFields from 'fields:searchKnowledge'
import { Alert, Badge, Button, Card, Group, Mark, Modal, SimpleGrid, Stack, Text, TextInput } from '@mantine/core'
import {
  type KnowledgeDocumentResult,
  type KnowledgeMemoryResult,
  type KnowledgeSearchAnswer,
  type KnowledgeSearchInput,
  parseExactJson,
} from '@muster/client'
import { listDocumentChunks, searchKnowledge } from '@muster/client/operations'
import { IconAdjustments, IconColumns2, IconSearch } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { api } from '#api.ts'
import { FormButton } from '#components/actions.tsx'
import { DatasetItemButton } from '#components/dataset-item.tsx'
import { useFilters } from '#components/filters.ts'
import { RecordLink } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { fieldLabel, SchemaForm } from '#components/schema-form.tsx'
import { Loaded, Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { isObject } from '#json.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { Chunk } from './document.tsx'

const texts = strings.search

type Hit = KnowledgeDocumentResult | KnowledgeMemoryResult
type Settings = Omit<KnowledgeSearchInput, 'query' | 'project_id'>

const FIELDS = [
  'limit',
  'min_similarity',
  'rrf_k',
  'recency_half_life_days',
  'max_chunks_per_document',
  'include_documents',
  'include_memories',
  'document_paths',
  'memory_store_ids',
  'actor_id',
  'tags',
  'metadata',
  'rerank',
]
/** Hits without a limit among the settings. */
const DEFAULT_LIMIT = 10
const EXCERPT_CHARACTERS = 700
const DAY_MS = 86_400_000

const settingsOf = (text: string | undefined): Settings => {
  try {
    const value: unknown = parseExactJson(text ?? '{}')
    return isObject(value) ? value : {}
  } catch {
    return {}
  }
}

const keyOf = (hit: Hit): string => (hit.source_type === 'document' ? hit.chunk_id : hit.memory_id)

/**
 * Finds the words of a query in a text, in other inflections too. It follows the search of the database nearly: the
 * service does not say which words matched.
 */
function wordsIn(query: string): RegExp | null {
  const words = query.match(/[\p{L}\p{N}]{2,}/gu) ?? []
  const stems = words.map(word => (word.length > 4 ? word.replace(/(ing|ed|es|e|s)$/u, '') : word))
  return stems.length > 0 ? new RegExp(`(?<![\\p{L}\\p{N}])((?:${stems.join('|')})[\\p{L}\\p{N}]*)`, 'giu') : null
}

/** Tries searches: results, their reasons, and the difference under other settings. */
export function Search() {
  const { filters, setFilters } = useFilters()
  const query = filters.q ?? ''
  const [typed, setTyped] = useState(query)
  const isCompared = filters.b !== undefined
  const first = useSearch(query, settingsOf(filters.a))
  const second = useSearch(query, settingsOf(filters.b), isCompared)
  const side = (name: 'a' | 'b', title: string) => {
    const [own, other] = name === 'a' ? [first, second] : [second, first]
    return (
      <Stack gap="md" component="section" aria-label={title}>
        <SettingsBar
          title={title}
          settings={own.settings}
          onChange={settings => setFilters({ [name]: JSON.stringify(settings) })}
        />
        {query || hasFilter(own.settings) ? (
          <Results {...own} query={query} other={isCompared ? other : undefined} />
        ) : (
          name === 'a' && (
            <Notice icon={<IconSearch />} title={texts.empty} color="indigo">
              {texts.emptyText}
            </Notice>
          )
        )}
      </Stack>
    )
  }
  return (
    <Page
      title={strings.nav.search}
      intro={texts.intro}
      actions={
        <Button
          variant="default"
          leftSection={<IconColumns2 size={16} />}
          onClick={() => setFilters({ b: isCompared ? undefined : (filters.a ?? '{}') })}
        >
          {isCompared ? texts.single : texts.compare}
        </Button>
      }
    >
      <form
        onSubmit={event => {
          event.preventDefault()
          const next = typed.trim()
          if (next !== query) setFilters({ q: next })
          else if (next) void Promise.all([first.result.refetch(), isCompared && second.result.refetch()])
        }}
      >
        <Group gap="sm">
          <TextInput
            aria-label={texts.query}
            placeholder={texts.query}
            leftSection={<IconSearch size={16} />}
            value={typed}
            onChange={event => setTyped(event.currentTarget.value)}
            flex="1 1 220px"
          />
          <Button type="submit" loading={first.result.isFetching}>
            {texts.button}
          </Button>
        </Group>
      </form>
      {isCompared ? (
        <SimpleGrid cols={{ base: 1, md: 2 }} spacing="lg">
          {side('a', texts.first)}
          {side('b', texts.second)}
        </SimpleGrid>
      ) : (
        side('a', texts.settings)
      )}
    </Page>
  )
}

/** Whether a search without a query is one. */
const hasFilter = ({ document_paths, memory_store_ids, metadata, tags }: Settings): boolean =>
  [document_paths, memory_store_ids, metadata, tags].some(filter => filter !== undefined)

function useSearch(query: string, settings: Settings, enabled = true) {
  const projectId = useProjectId()
  const result = useQuery<KnowledgeSearchAnswer>({
    queryKey: ['search', projectId, query, settings],
    queryFn: async ({ signal }) => {
      const args = { ...settings, project_id: projectId, ...(query ? { query } : {}) }
      return searchKnowledge(api, args, { signal })
    },
    enabled: enabled && (query !== '' || hasFilter(settings)),
  })
  return { settings, result }
}

type Side = ReturnType<typeof useSearch>

function SettingsBar({
  title,
  settings,
  onChange,
}: {
  title: string
  settings: Settings
  onChange: (settings: Settings) => void
}) {
  const entries = Object.entries(settings)
  return (
    <Group gap="sm">
      <FormButton
        label={title}
        variant="default"
        size="xs"
        leftSection={<IconAdjustments size={16} />}
        form={close => (
          <SettingsForm
            settings={settings}
            onDone={changed => {
              if (changed) onChange(changed)
              close()
            }}
          />
        )}
      />
      {entries.length === 0 && (
        <Text size="sm" c="dimmed">
          {texts.defaults}
        </Text>
      )}
      {entries.map(([name, value]) => (
        <Badge key={name} variant="default" maw="100%">
          {visible(`${fieldLabel(name)}: ${typeof value === 'object' ? JSON.stringify(value) : value}`)}
        </Badge>
      ))}
    </Group>
  )
}

function SettingsForm({ settings, onDone }: { settings: Settings; onDone: (settings?: Settings) => void }) {
  return (
    <SchemaForm
      schema={searchFields}
      only={FIELDS}
      initial={settings}
      submitLabel={texts.apply}
      onSubmit={changed => {
        const kept = Object.entries({ ...settings, ...changed }).filter(([, value]) => value !== null)
        onDone(Object.fromEntries(kept) as Settings)
      }}
      onCancel={() => onDone()}
    />
  )
}

function Results({ query, settings, result, other }: Side & { query: string; other?: Side }) {
  return (
    <Loaded query={result} operation={searchKnowledge}>
      {({ results, degraded_channels }) => (
        <Stack gap="md">
          {degraded_channels.length > 0 && (
            <Alert color="yellow">{texts.degraded(degraded_channels.map(channel => texts.channels[channel]))}</Alert>
          )}
          <Text size="sm" c="dimmed" role="status">
            {texts.count(results.length)}
          </Text>
          {results.map((hit, index) => (
            <HitCard key={keyOf(hit)} hit={hit} rank={index + 1} query={query} settings={settings} other={other} />
          ))}
        </Stack>
      )}
    </Loaded>
  )
}

/** Why a hit of one search is not among the hits of another one. */
function whyMissing(hit: Hit, settings: Settings, hits: Hit[]): string {
  const { limit = DEFAULT_LIMIT, min_similarity: floor, max_chunks_per_document: most } = settings
  const isDocument = hit.source_type === 'document'
  if (isDocument ? settings.include_documents === false : settings.include_memories === false)
    return texts.missing.excluded
  const { similarity_score: similarity, signals } = hit
  if (floor !== undefined && similarity !== undefined && similarity < floor && signals?.lexical === undefined)
    return texts.missing.similarity(similarity, floor)
  const siblings = hits.filter(each => isDocument && 'document_id' in each && each.document_id === hit.document_id)
  if (most !== undefined && siblings.length >= most) return texts.missing.perDocument(most)
  return hits.length >= limit ? texts.missing.limit(limit) : texts.missing.filtered
}

function HitCard({
  hit,
  rank,
  query,
  settings,
  other,
}: {
  hit: Hit
  rank: number
  query: string
  settings: Settings
  other?: Side
}) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const [isOpen, setOpen] = useState(false)
  const isDocument = hit.source_type === 'document'
  const name = isDocument ? (hit.title ?? hit.filename) : hit.memory_store_name
  const to = isDocument
    ? `/p/${projectId}/documents/${hit.document_id}`
    : `/p/${projectId}/memory/${hit.memory_store_id}/${hit.memory_id}`
  return (
    <Card withBorder padding="md" radius="lg" component="article" aria-label={texts.hit(rank, visible(name))}>
      <Stack gap="sm">
        <Group gap="sm" wrap="nowrap" align="flex-start">
          <Text c="dimmed" fw={600}>
            {rank}
          </Text>
          <Stack gap={0} miw={0}>
            <RecordLink to={to}>{visible(name)}</RecordLink>
            <Text size="sm" c="dimmed" component="div">
              {isDocument
                ? visible(
                    [
                      hit.path,
                      strings.documents.chunk(hit.chunk_index),
                      hit.page === null ? null : strings.documents.page(hit.page),
                    ]
                      .filter(Boolean)
                      .join(', '),
                  )
                : texts.memory}
              {', '}
              <When at={hit.updated_at} />
            </Text>
          </Stack>
        </Group>
        <Text component="div" className="wrap" size="sm">
          <Excerpt text={hit.content} query={query} />
        </Text>
        <Signals hit={hit} halfLifeDays={settings.recency_half_life_days} />
        {other && <Elsewhere hit={hit} rank={rank} other={other} />}
        <Group gap="sm">
          {isDocument && isAllowed(listDocumentChunks) && (
            <Button size="xs" variant="default" onClick={() => setOpen(true)}>
              {texts.openChunk}
            </Button>
          )}
          {query && (
            <DatasetItemButton
              item={{
                input: query,
                expected: hit.content,
                metadata: isDocument
                  ? { document_id: hit.document_id, chunk_id: hit.chunk_id }
                  : { memory_id: hit.memory_id },
              }}
            />
          )}
        </Group>
      </Stack>
      {isDocument && (
        <Modal opened={isOpen} onClose={() => setOpen(false)} title={visible(name)} size="xl">
          {isOpen && <Neighbours hit={hit} />}
        </Modal>
      )}
    </Card>
  )
}

/** The part of a text around the first word of the query, with these words marked. */
function Excerpt({ text, query }: { text: string; query: string }) {
  const words = wordsIn(query)
  const at = words ? Math.max(0, text.search(words)) : 0
  const from = text.length > EXCERPT_CHARACTERS ? Math.max(0, at - EXCERPT_CHARACTERS / 4) : 0
  const part = text.slice(from, from + EXCERPT_CHARACTERS)
  const shown = visible(`${from > 0 ? '… ' : ''}${part}${from + part.length < text.length ? ' …' : ''}`)
  if (!words) return <>{shown}</>
  return <>{shown.split(words).map((piece, index) => (index % 2 ? <Mark key={index}>{piece}</Mark> : piece))}</>
}

function Signals({ hit, halfLifeDays = 0 }: { hit: Hit; halfLifeDays?: number }) {
  const { score, similarity_score: similarity, signals, source_type, updated_at } = hit
  if (score === undefined) return null
  const { vector, lexical, rerank } = signals ?? {}
  const days = (Date.now() - Date.parse(updated_at)) / DAY_MS
  const facts = [
    texts.score(score),
    vector === undefined ? texts.noVector : texts.vector(vector),
    lexical === undefined ? texts.noLexical : texts.lexical(lexical),
    similarity !== undefined && texts.similarity(similarity),
    rerank !== undefined && texts.rerank(rerank),
    source_type === 'memory' && halfLifeDays > 0 && texts.recency(2 ** (-days / halfLifeDays)),
  ]
  return (
    <Group gap={6}>
      {facts
        .filter(fact => fact !== false)
        .map(fact => (
          <Badge key={fact} variant="default">
            {fact}
          </Badge>
        ))}
    </Group>
  )
}

/** Where a hit is under the other settings. */
function Elsewhere({ hit, rank, other }: { hit: Hit; rank: number; other: Side }) {
  const { data } = other.result
  if (!data) return null
  const at = data.results.findIndex(each => keyOf(each) === keyOf(hit)) + 1
  return (
    <Text size="sm" fw={600}>
      {at > 0 ? texts.elsewhere(at, rank - at) : whyMissing(hit, other.settings, data.results)}
    </Text>
  )
}

/** The chunk of a hit, with the one before and the one after it. */
function Neighbours({ hit: { document_id, chunk_index } }: { hit: KnowledgeDocumentResult }) {
  const offset = Math.max(0, chunk_index - 1)
  const chunks = useQuery({
    queryKey: ['document', document_id, 'chunks', 'near', chunk_index],
    queryFn: async ({ signal }) => {
      const bounds = { limit: chunk_index - offset + 2, offset }
      return (await listDocumentChunks(api, { document_id, ...bounds }, { signal }).page()).data
    },
  })
  return (
    <Loaded query={chunks} operation={listDocumentChunks}>
      {rows => (
        <Stack gap="lg">
          {rows.map(chunk => (
            <Chunk key={chunk.id} chunk={chunk} isMarked={chunk.chunk_index === chunk_index} />
          ))}
        </Stack>
      )}
    </Loaded>
  )
}
