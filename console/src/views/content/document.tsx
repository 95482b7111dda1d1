import reingestFields from 'fields:reingestDocument'
import patchFields from 'fields:updateDocument'
import { Alert, Anchor, Badge, Button, Card, Group, Modal, Pagination, Progress, Stack, Text } from '@mantine/core'
import type {
  Client,
  DocumentChunk,
  DocumentPatch,
  DocumentVersion,
  DocumentWithContent,
  ReingestInput,
} from '@muster/client'
import {
  deleteDocument,
  getDocument,
  getDocumentStatus,
  getDocumentVersion,
  listDocumentChunks,
  listDocumentVersions,
  reingestDocument,
  replaceDocumentTags,
  restoreDocumentVersion,
  updateDocument,
  withdrawDocument,
} from '@muster/client/operations'
import { IconAlertTriangle, IconEdit, IconRefresh } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { useIds } from '#address.ts'
import { api, BUSY_MS, every } from '#api.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { useFilters } from '#components/filters.ts'
import { PAGE_ROWS } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, IdLine, Section } from '#components/record.tsx'
import { RecordPage, RemoveButton } from '#components/record-page.tsx'
import { SchemaForm } from '#components/schema-form.tsx'
import { Loaded } from '#components/states.tsx'
import { Tags, TagsButton } from '#components/tags.tsx'
import { sizeText, visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { Versions } from '#components/versions.tsx'
import { usePermissions } from '#projects.ts'
import * as strings from '#strings.ts'
import { DocumentStatus, isIngesting } from './documents.tsx'

const texts = strings.documents

const documentKey = (id: string) => ['document', id]
const CHUNK_FIELDS = ['chunk_strategy', 'chunk_unit', 'chunk_size', 'chunk_overlap']

/** A document: its ingestion, text, chunks and versions. */
export function DocumentView() {
  const { documentId } = useIds()
  return (
    <RecordPage
      queryKey={documentKey(documentId)}
      get={getDocument}
      ids={{ document_id: documentId }}
      refetchInterval={query => (isIngesting(query.state.data?.status) ? every(BUSY_MS)(query) : false)}
    >
      {record => <DocumentPage document={record} />}
    </RecordPage>
  )
}

function DocumentPage({ document }: { document: DocumentWithContent }) {
  const { id, project_id, status } = document
  const isAllowed = usePermissions(project_id)
  const stale = [documentKey(id), ['documents', project_id], ['files', project_id]]
  const mayUpdate = isAllowed(updateDocument) && status !== 'withdrawn'
  const actions = (
    <>
      {status !== 'withdrawn' && isAllowed(reingestDocument) && (
        <FormButton
          label={texts.reingest}
          variant="default"
          leftSection={<IconRefresh size={16} />}
          form={close => <ReingestForm document={document} stale={stale} onDone={close} />}
        />
      )}
      {mayUpdate && (
        <FormButton
          label={strings.edit}
          leftSection={<IconEdit size={16} />}
          form={close => <DocumentForm document={document} stale={stale} onDone={close} />}
        />
      )}
    </>
  )
  return (
    <Page
      title={document.title ?? document.filename}
      intro={
        <Group gap="sm">
          <DocumentStatus status={status} />
          {document.path && <span>{visible(document.path)}</span>}
        </Group>
      }
      actions={actions}
    >
      <Ingestion document={document} />
      <AddressTabs
        tabs={[
          { value: 'text', title: strings.text, content: () => <DocumentText document={document} /> },
          {
            value: 'chunks',
            title: texts.chunksOf(document.chunk_count),
            content: () => <Chunks document={document} />,
          },
          {
            value: 'versions',
            title: strings.versions,
            content: () => <DocumentVersions document={document} stale={stale} />,
          },
          {
            value: 'record',
            title: strings.record,
            content: () => (
              <Section
                title={strings.record}
                actions={
                  <>
                    {mayUpdate && (
                      <ActionButton
                        label={texts.withdraw}
                        question={texts.withdrawText}
                        run={async () => withdrawDocument(api, { document_id: id })}
                        stale={stale}
                      />
                    )}
                    <RemoveButton
                      operation={deleteDocument}
                      ids={{ document_id: id }}
                      question={texts.deleteText}
                      stale={stale.slice(1)}
                      list="documents"
                      size="xs"
                    />
                  </>
                }
              >
                <DocumentFacts document={document} />
                <Group gap="sm">
                  <Tags tags={document.tags} />
                  {mayUpdate && (
                    <TagsButton
                      tags={document.tags}
                      save={async tags => replaceDocumentTags(api, { ...tags, document_id: id })}
                      stale={stale}
                    />
                  )}
                </Group>
                {document.metadata !== null && <Value value={document.metadata} label={strings.files.metadata} />}
              </Section>
            ),
          },
        ]}
      />
    </Page>
  )
}

function DocumentFacts({ document }: { document: DocumentWithContent }) {
  const { chunk_strategy, chunk_size, chunk_overlap, chunk_unit } = document
  return (
    <>
      <Facts
        facts={[
          [strings.version, document.version],
          [texts.chunks, document.chunk_count.toLocaleString()],
          [texts.strategy, chunk_strategy],
          [texts.chunkSize, chunk_size && `${chunk_size} ${chunk_unit ?? ''}`],
          [texts.overlap, chunk_overlap],
          [strings.files.size, sizeText(document.size)],
          [strings.files.type, document.content_type && visible(document.content_type)],
          [strings.created, <When key="created" at={document.created_at} />],
          [strings.updated, <When key="updated" at={document.updated_at} />],
          [
            texts.file,
            <Anchor
              key="file"
              component={Link}
              to={`/p/${document.project_id}/files/${document.file_id}`}
              underline="always"
            >
              {visible(document.filename)}
            </Anchor>,
          ],
        ]}
      />
      <IdLine id={document.id} />
    </>
  )
}

/** How far the ingestion is, and why it failed. */
function Ingestion({ document: { id, status, error } }: { document: DocumentWithContent }) {
  const progress = useQuery({
    queryKey: [...documentKey(id), 'status'],
    queryFn: async ({ signal }) => getDocumentStatus(api, { document_id: id }, { signal }),
    enabled: isIngesting(status),
    refetchInterval: every(BUSY_MS),
  })
  if (status === 'failed' && error)
    return (
      <Alert icon={<IconAlertTriangle />} color="red" title={texts.failed} role="alert">
        <Text size="sm">{visible(error.message)}</Text>
        <Text size="sm" className="mono">
          {error.code}
        </Text>
        {error.meta && Object.keys(error.meta).length > 0 && <Value value={error.meta} label={texts.failed} />}
      </Alert>
    )
  if (status === 'withdrawn') return <Alert>{texts.withdrawn}</Alert>
  if (!isIngesting(status)) return null
  const { total_pages: pages, total_chunks: total, chunk_count: done = 0 } = progress.data ?? {}
  return (
    <Alert title={texts.ingesting} role="status">
      <Stack gap="xs">
        <Text size="sm">
          {total ? texts.progress(done, total) : texts.steps[status]}
          {pages ? ` ${texts.pages(pages)}` : ''}
        </Text>
        <Progress value={progress.data?.progress ?? 0} aria-label={texts.ingesting} animated={!total} />
      </Stack>
    </Alert>
  )
}

function DocumentText({ document: { content, status } }: { document: DocumentWithContent }) {
  return (
    <Section title={strings.text}>
      {content ? (
        <Value value={content} label={strings.text} />
      ) : (
        <Text c="dimmed">{content === '' ? texts.emptyContent : texts.noText[status]}</Text>
      )}
    </Section>
  )
}

/** A chunk with its place in the document. */
export function Chunk({ chunk, isMarked = false }: { chunk: DocumentChunk; isMarked?: boolean }) {
  return (
    <Stack gap={4}>
      <Group gap="sm">
        <Badge variant={isMarked ? 'filled' : 'default'}>{texts.chunk(chunk.chunk_index)}</Badge>
        {chunk.page_number !== null && (
          <Text size="sm" c="dimmed">
            {texts.page(chunk.page_number)}
          </Text>
        )}
        <Text size="sm" c="dimmed">
          {texts.characters(chunk.char_start, chunk.char_end)}
        </Text>
        {!chunk.embedded && <Badge variant="default">{texts.notEmbedded}</Badge>}
      </Group>
      <Value value={chunk.content} label={texts.chunk(chunk.chunk_index)} />
    </Stack>
  )
}

function Chunks({ document: { id, status, version } }: { document: DocumentWithContent }) {
  const { filters, setFilters } = useFilters()
  const page = Math.max(1, Math.floor(Number(filters.page)) || 1)
  const chunks = useQuery({
    queryKey: [...documentKey(id), 'chunks', status, version, page],
    queryFn: async ({ signal }) => {
      const bounds = { limit: PAGE_ROWS, offset: (page - 1) * PAGE_ROWS }
      return listDocumentChunks(api, { document_id: id, ...bounds }, { signal }).page()
    },
    placeholderData: previous => previous,
  })
  return (
    <Loaded query={chunks} operation={getDocument}>
      {({ data, total }) =>
        total === 0 ? (
          <Text c="dimmed">{texts.noChunks}</Text>
        ) : (
          <Stack gap="md">
            {data.map(chunk => (
              <Card key={chunk.id} withBorder padding="md" radius="lg">
                <Chunk chunk={chunk} />
              </Card>
            ))}
            {total > PAGE_ROWS && (
              <Pagination
                total={Math.ceil(total / PAGE_ROWS)}
                value={page}
                onChange={next => setFilters({ page: next > 1 ? String(next) : undefined })}
                getControlProps={control => ({ 'aria-label': `${control} page` })}
                getItemProps={number => ({ 'aria-label': `Page ${number}` })}
              />
            )}
          </Stack>
        )
      }
    </Loaded>
  )
}

/** Fields of a document that its versions have. */
const COMPARED = [
  ...(['title', 'path', 'content', 'metadata', 'tags', 'tombstone'] as const),
  ...(['chunk_strategy', 'chunk_unit', 'chunk_size', 'chunk_overlap'] as const),
]

type Sides = { document_id: string; from: number; to: number }

/** Returns the fields that differ between two versions of a document. */
const compareVersions = Object.assign(
  async (client: Client, { document_id, from, to }: Sides, options: { signal: AbortSignal }) => {
    const [before, after] = await Promise.all(
      [from, to].map(version => getDocumentVersion(client, { document_id, version: String(version) }, options)),
    )
    return {
      changes: COMPARED.filter(name => JSON.stringify(before[name]) !== JSON.stringify(after[name])).map(path => ({
        path,
        before: before[path] ?? null,
        after: after[path] ?? null,
      })),
    }
  },
  { action: getDocumentVersion.action },
)

function DocumentVersions({ document, stale }: { document: DocumentWithContent; stale: string[][] }) {
  const { id, version: current, status } = document
  const [shown, setShown] = useState<number | null>(null)
  return (
    <>
      <Versions<DocumentVersion, { document_id: string }>
        queryKey={documentKey(id)}
        current={current}
        ids={{ document_id: id }}
        operations={{ list: listDocumentVersions, compare: compareVersions, restore: restoreDocumentVersion }}
        mayRestore={({ version, tombstone }) => !tombstone && (version !== current || status === 'withdrawn')}
        stateOf={({ version, tombstone }) => {
          if (tombstone) return texts.status.withdrawn
          return version === current ? texts.current : null
        }}
        labelOf={({ title, path }) => [title, path].filter(Boolean).join(', ')}
        stale={stale}
        extra={({ version, tombstone }) =>
          !tombstone && (
            <Button variant="default" size="xs" onClick={() => setShown(version)}>
              {texts.show}
            </Button>
          )
        }
      />
      <Modal
        opened={shown !== null}
        onClose={() => setShown(null)}
        title={`${strings.version} ${shown ?? ''}`}
        size="xl"
      >
        {shown !== null && <VersionText id={id} version={shown} />}
      </Modal>
    </>
  )
}

function VersionText({ id, version }: { id: string; version: number }) {
  return (
    <RecordPage
      queryKey={[...documentKey(id), 'versions', 'text', version]}
      get={getDocumentVersion}
      ids={{ document_id: id, version: String(version) }}
    >
      {({ content }) => <Value value={content ?? ''} label={`${strings.version} ${version}`} />}
    </RecordPage>
  )
}

function DocumentForm({
  document,
  stale,
  onDone,
}: {
  document: DocumentWithContent
  stale: string[][]
  onDone: () => void
}) {
  // A later version of another person is not replaced.
  const [expected_version] = useState(document.version)
  const save = useAction({
    run: async (values: DocumentPatch) =>
      updateDocument(api, { ...values, document_id: document.id, expected_version }),
    stale,
    onDone,
  })
  const isText = document.status === 'ready' && document.content_type?.startsWith('text/')
  return (
    <SchemaForm
      schema={patchFields}
      only={['title', 'path', ...(isText ? ['content'] : []), ...CHUNK_FIELDS, 'metadata']}
      initial={document}
      isPending={save.isPending}
      error={save.error}
      onSubmit={save.mutate}
      onCancel={onDone}
    />
  )
}

function ReingestForm({
  document,
  stale,
  onDone,
}: {
  document: DocumentWithContent
  stale: string[][]
  onDone: () => void
}) {
  const ingest = useAction({
    run: async (values: ReingestInput) => reingestDocument(api, { ...values, document_id: document.id }),
    stale,
    onDone,
  })
  return (
    <SchemaForm
      schema={reingestFields}
      only={CHUNK_FIELDS}
      initial={document}
      submitLabel={texts.reingest}
      isPending={ingest.isPending}
      error={ingest.error}
      onSubmit={ingest.mutate}
      onCancel={onDone}
    />
  )
}
