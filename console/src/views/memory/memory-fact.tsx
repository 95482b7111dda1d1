import patchFields from 'fields:updateMemory'
import { Anchor, Badge, Group, Stack, Text, Timeline } from '@mantine/core'
import { type Memory, type MemoryPatch, NotFound } from '@muster/client'
import {
  deleteMemory,
  getMemory,
  listMemoryEntries,
  replaceMemoryTags,
  retractMemory,
  updateMemory,
} from '@muster/client/operations'
import { IconEdit } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { useActors } from '#choices.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { Page } from '#components/page.tsx'
import { Facts, IdLine, Section } from '#components/record.tsx'
import { RecordPage, RemoveButton } from '#components/record-page.tsx'
import { SchemaForm } from '#components/schema-form.tsx'
import { Loaded } from '#components/states.tsx'
import { Tags, TagsButton } from '#components/tags.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { isCurrent, Ledger, Validity } from './memory-store.tsx'

const texts = strings.memory

const memoryKey = (id: string) => ['memory', id]

/** Facts before and after a fact that are read. */
const CHAIN_MAX = 20

/** A fact: whether it is current, its predecessors and its successors. */
export function MemoryFactView() {
  const { memoryId } = useIds()
  return (
    <RecordPage queryKey={memoryKey(memoryId)} get={getMemory} ids={{ memory_id: memoryId }}>
      {record => <FactPage memory={record} />}
    </RecordPage>
  )
}

function FactPage({ memory }: { memory: Memory }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { nameOf } = useActors(memory.project_id)
  const { id, memory_store_id: storeId } = memory
  const stale = [memoryKey(id), ['memories', storeId], ['memory-entries'], ['memory-store', storeId]]
  const mayUpdate = isAllowed(updateMemory)
  return (
    <Page
      title={texts.fact}
      intro={<Validity memory={memory} />}
      actions={
        mayUpdate &&
        isCurrent(memory) && (
          <>
            <ActionButton
              size="sm"
              label={texts.invalidate}
              question={texts.invalidateText}
              run={async () => retractMemory(api, { memory_id: id })}
              stale={stale}
            />
            <FormButton
              label={texts.correct}
              leftSection={<IconEdit size={16} />}
              form={close => <CorrectForm memory={memory} stale={stale} onDone={close} />}
            />
          </>
        )
      }
    >
      <Section
        title={strings.record}
        actions={
          <RemoveButton
            operation={deleteMemory}
            ids={{ memory_id: id }}
            question={texts.deleteText}
            stale={stale.slice(1)}
            list={`memory/${storeId}`}
            size="xs"
          />
        }
      >
        <Text className="wrap">{visible(memory.content)}</Text>
        <Facts
          facts={[
            [texts.actor, memory.actor_id ? nameOf(memory.actor_id) : texts.everybody],
            [texts.source, texts.sources[memory.source_type]],
            [strings.created, <When key="created" at={memory.created_at} />],
            [strings.expires, memory.expires_at && <When key="expires" at={memory.expires_at} />],
          ]}
        />
        <IdLine id={id} />
        {!memory.embedded && <Badge variant="default">{strings.documents.notEmbedded}</Badge>}
        {memory.metadata !== null && <Value value={memory.metadata} label={strings.files.metadata} />}
        <Group gap="sm">
          <Tags tags={memory.tags} />
          {mayUpdate && (
            <TagsButton
              tags={memory.tags}
              save={async tags => replaceMemoryTags(api, { ...tags, memory_id: id })}
              stale={stale}
            />
          )}
        </Group>
      </Section>
      {isAllowed(listMemoryEntries) && (
        <>
          <History memory={memory} />
          <Section title={texts.ledger}>
            <Ledger storeId={storeId} memoryId={id} />
          </Section>
        </>
      )}
    </Page>
  )
}

/** Reads the facts that led to a memory and those that replaced it, the oldest first. */
async function readChain(memory: Memory, signal: AbortSignal): Promise<Memory[]> {
  const chain = [memory]
  const read = async (id: string) => {
    try {
      return (await getMemory(api, { memory_id: id }, { signal })) as Memory
    } catch (error) {
      // Deleted, or not for this user.
      if (error instanceof NotFound) return null
      throw error
    }
  }
  for (let count = 0; count < CHAIN_MAX; count++) {
    const args = { memory_id: chain[0].id, action: ['superseded' as const], limit: 10 }
    const { data } = await listMemoryEntries(api, args, { signal }).page()
    const earlier = data.find(({ memory_id }) => memory_id === chain[0].id)?.superseded_memory_id
    const before = earlier && (await read(earlier))
    if (!before) break
    chain.unshift(before)
  }
  for (let count = 0; count < CHAIN_MAX; count++) {
    const later = chain[chain.length - 1].superseded_by_memory_id
    const after = later && (await read(later))
    if (!after) break
    chain.push(after)
  }
  return chain
}

function History({ memory }: { memory: Memory }) {
  const projectId = useProjectId()
  const chain = useQuery<Memory[]>({
    queryKey: [...memoryKey(memory.id), 'chain', memory.superseded_by_memory_id],
    queryFn: ({ signal }) => readChain(memory, signal),
  })
  return (
    <Section title={texts.history}>
      <Loaded query={chain} operation={listMemoryEntries} rows={1}>
        {facts =>
          facts.length === 1 ? (
            <Text c="dimmed">{texts.noHistory}</Text>
          ) : (
            <Timeline bulletSize={16} lineWidth={2} active={facts.findIndex(({ id }) => id === memory.id)}>
              {facts.map(fact => (
                <Timeline.Item key={fact.id}>
                  <Stack gap={4}>
                    {fact.id === memory.id ? (
                      <Text fw={600}>{visible(fact.content)}</Text>
                    ) : (
                      <Anchor
                        component={Link}
                        to={`/p/${projectId}/memory/${fact.memory_store_id}/${fact.id}`}
                        underline="always"
                      >
                        {visible(fact.content)}
                      </Anchor>
                    )}
                    <Validity memory={fact} />
                  </Stack>
                </Timeline.Item>
              ))}
            </Timeline>
          )
        }
      </Loaded>
    </Section>
  )
}

/** Changes a fact in place: for an error from the start. */
function CorrectForm({ memory, stale, onDone }: { memory: Memory; stale: string[][]; onDone: () => void }) {
  const save = useAction({
    run: async (values: MemoryPatch) => updateMemory(api, { ...values, memory_id: memory.id }),
    stale,
    onDone,
  })
  return (
    <Stack gap="md">
      <Text size="sm" c="dimmed">
        {texts.correctText}
      </Text>
      <SchemaForm
        schema={patchFields}
        only={['content', 'expires_at', 'metadata']}
        initial={memory}
        isPending={save.isPending}
        error={save.error}
        onSubmit={save.mutate}
        onCancel={onDone}
      />
    </Stack>
  )
}
