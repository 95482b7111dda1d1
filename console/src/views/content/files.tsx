import {
  ActionIcon,
  Anchor,
  Badge,
  Breadcrumbs,
  Button,
  Card,
  Checkbox,
  FileButton,
  Group,
  Progress,
  Stack,
  Text,
} from '@mantine/core'
import type { File as FileRecord } from '@muster/client'
import { ingestDocument, listFiles, uploadFile } from '@muster/client/operations'
import { IconFile, IconFolder, IconRefresh, IconUpload, IconX } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { type DragEvent, useState } from 'react'
import { api, failureOf, queries } from '#api.ts'
import { useFilters } from '#components/filters.ts'
import { type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { sizeText, visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { type Upload, useUploads } from '#uploads.ts'

const texts = strings.files

/** Newest files below a folder that are read to show its subfolders. */
const READ_MAX = 1000

type Folder = { name: string; path: string; count: number; size: number; updated_at: string }
type Row = { folder: Folder } | { file: FileRecord }

/** Returns the direct entries of a folder: subfolders by name, then files, the newest first. */
function rowsIn(prefix: string, files: FileRecord[]): Row[] {
  const folders = new Map<string, Folder>()
  const direct: Row[] = []
  for (const file of files) {
    const rest = (file.path ?? file.filename).slice(prefix.length).replace(/^\//, '')
    const at = rest.indexOf('/')
    if (at < 0) {
      direct.push({ file })
      continue
    }
    const name = rest.slice(0, at)
    const folder = folders.get(name) ?? { name, path: `${prefix}/${name}`, count: 0, size: 0, updated_at: '' }
    folder.count++
    folder.size += file.size ?? 0
    if (file.updated_at > folder.updated_at) folder.updated_at = file.updated_at
    folders.set(name, folder)
  }
  const byName = [...folders.values()].toSorted((one, other) => one.name.localeCompare(other.name))
  return [...byName.map(folder => ({ folder })), ...direct]
}

/** Files of a project, by folder. */
export function Files() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { filters } = useFilters()
  const prefix = (filters.folder ?? '').replace(/(?<!\/)\/+$/, '')
  const filesKey = ['files', projectId, 'below', prefix]
  const list = useList<Row>(['files', projectId], async ({ q }, { limit, offset }) => {
    const { files } = await queries.fetchQuery({
      queryKey: filesKey,
      queryFn: ({ signal }) => readBelow(projectId, prefix, signal),
      staleTime: 10_000,
    })
    const wanted = q?.toLowerCase()
    const rows = wanted
      ? files.filter(({ path, filename }) => (path ?? filename).toLowerCase().includes(wanted)).map(file => ({ file }))
      : rowsIn(prefix, files)
    return { data: rows.slice(offset, offset + limit), total: rows.length }
  })
  const { data: below } = useQuery<Below>({ queryKey: filesKey, enabled: false })
  const view = `/p/${projectId}/files`
  const columns: Column<Row>[] = [
    {
      title: strings.name,
      isWide: true,
      cell: row => {
        if ('folder' in row)
          return (
            <Group gap="sm" wrap="nowrap">
              <IconFolder size={18} aria-hidden style={{ flexShrink: 0 }} />
              <RecordLink to={`${view}?folder=${encodeURIComponent(row.folder.path)}`}>
                {visible(row.folder.name)}
              </RecordLink>
            </Group>
          )
        const { id, filename, path } = row.file
        return (
          <Group gap="sm" wrap="nowrap">
            <IconFile size={18} aria-hidden style={{ flexShrink: 0 }} />
            <Stack gap={0} miw={0}>
              <RecordLink to={`${view}/${id}`}>{visible(filename)}</RecordLink>
              {filters.q && path && (
                <Text size="sm" c="dimmed">
                  {visible(path)}
                </Text>
              )}
            </Stack>
          </Group>
        )
      },
    },
    {
      title: texts.type,
      cell: row =>
        'folder' in row ? (
          texts.count(row.folder.count)
        ) : (
          <span className="mono">{visible(row.file.content_type ?? strings.none)}</span>
        ),
    },
    {
      title: texts.size,
      cell: row => {
        const size = 'folder' in row ? row.folder.size : row.file.size
        return size === null ? strings.none : sizeText(size)
      },
    },
    {
      title: texts.document,
      cell: row =>
        'file' in row && row.file.document_id ? (
          <Anchor component={Link} to={`/p/${projectId}/documents/${row.file.document_id}`} underline="always" fz="sm">
            {texts.openDocument}
          </Anchor>
        ) : (
          strings.none
        ),
    },
    {
      title: strings.updated,
      cell: row => <When at={'folder' in row ? row.folder.updated_at : row.file.updated_at} />,
    },
  ]
  return (
    <Page title={strings.nav.files} intro={texts.intro}>
      {isAllowed(uploadFile) && <UploadArea projectId={projectId} prefix={prefix} />}
      <ListView
        label={strings.nav.files}
        list={list}
        operation={listFiles}
        columns={columns}
        keyOf={row => ('folder' in row ? row.folder.path : row.file.id)}
        fields={
          <>
            <SearchField label={texts.search} />
            {prefix && <FolderPath prefix={prefix} view={view} />}
          </>
        }
        empty={
          <Notice icon={<IconFile />} title={texts.empty} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
      {below && below.total > below.files.length && (
        <Text size="sm" c="dimmed">
          {texts.newest(below.files.length, below.total)}
        </Text>
      )}
    </Page>
  )
}

type Below = { files: FileRecord[]; total: number }

async function readBelow(projectId: string, prefix: string, signal: AbortSignal): Promise<Below> {
  const list = listFiles(api, { project_id: projectId, ...(prefix ? { path_prefix: prefix } : {}) }, { signal })
  const files = (await list.all({ max: READ_MAX })) as FileRecord[]
  return { files, total: list.total ?? files.length }
}

/** The folder that is open and those above it. */
function FolderPath({ prefix, view }: { prefix: string; view: string }) {
  const names = prefix.split('/').slice(1)
  return (
    <Breadcrumbs component="nav" aria-label={texts.folder} separatorMargin={6}>
      <Anchor component={Link} to={view} underline="always">
        {texts.root}
      </Anchor>
      {names.map((name, index) =>
        index === names.length - 1 ? (
          <Text key={index} fw={600}>
            {visible(name)}
          </Text>
        ) : (
          <Anchor
            key={index}
            component={Link}
            to={`${view}?folder=${encodeURIComponent(`/${names.slice(0, index + 1).join('/')}`)}`}
            underline="always"
          >
            {visible(name)}
          </Anchor>
        ),
      )}
    </Breadcrumbs>
  )
}

/** Where files are dropped or chosen, and how far they are sent. */
function UploadArea({ projectId, prefix }: { projectId: string; prefix: string }) {
  const isAllowed = usePermissions(projectId)
  const { uploads, upload, stop, retry, clear } = useUploads(projectId)
  const [isOver, setOver] = useState(false)
  const mayIngest = isAllowed(ingestDocument) === true
  const [isIngested, setIngested] = useState(false)
  const add = (files: File[]) => {
    if (files.length > 0) upload(files, { prefix, isIngested: mayIngest && isIngested })
  }
  const onDrag = (isInside: boolean) => (event: DragEvent) => {
    event.preventDefault()
    setOver(isInside)
  }
  const hasEnded = uploads.some(({ status }) => status !== 'sending' && status !== 'waiting')
  return (
    <Stack gap="sm">
      <Card
        withBorder
        padding="lg"
        radius="lg"
        component="section"
        aria-label={texts.upload}
        onDragEnter={onDrag(true)}
        onDragOver={onDrag(true)}
        onDragLeave={onDrag(false)}
        onDrop={event => {
          onDrag(false)(event)
          add([...event.dataTransfer.files])
        }}
        style={{
          borderStyle: 'dashed',
          borderColor: isOver ? 'var(--mantine-primary-color-filled)' : 'var(--mantine-color-gray-6)',
        }}
      >
        <Group justify="space-between" gap="md">
          <Stack gap={6} flex="1 1 240px">
            <Text fw={600}>{prefix ? texts.dropInto(visible(prefix)) : texts.drop}</Text>
            {mayIngest && (
              <Checkbox
                label={texts.ingestToo}
                description={texts.ingestHelp}
                checked={isIngested}
                onChange={event => setIngested(event.currentTarget.checked)}
              />
            )}
          </Stack>
          <FileButton multiple onChange={add}>
            {props => (
              <Button {...props} leftSection={<IconUpload size={16} />}>
                {texts.choose}
              </Button>
            )}
          </FileButton>
        </Group>
      </Card>
      {uploads.length > 0 && (
        <Card withBorder padding="md" radius="lg" component="section" aria-label={texts.uploads}>
          <Stack gap="sm">
            {uploads.map(each => (
              <UploadRow key={each.id} upload={each} onStop={() => stop(each.id)} onRetry={() => retry(each.id)} />
            ))}
            {hasEnded && (
              <Button variant="default" size="xs" onClick={clear} style={{ alignSelf: 'flex-start' }}>
                {texts.clear}
              </Button>
            )}
          </Stack>
        </Card>
      )}
    </Stack>
  )
}

function UploadRow({
  upload: { name, size, sent, status, error, fileId },
  onStop,
  onRetry,
}: {
  upload: Upload
  onStop: () => void
  onRetry: () => void
}) {
  const projectId = useProjectId()
  const shown = visible(name)
  const isOpen = status === 'sending' || status === 'waiting'
  const percent = size === 0 ? 100 : Math.floor((sent / size) * 100)
  return (
    <Stack gap={4}>
      <Group justify="space-between" gap="sm" wrap="nowrap">
        <Stack gap={0} miw={0}>
          {fileId ? <RecordLink to={`/p/${projectId}/files/${fileId}`}>{shown}</RecordLink> : <Text>{shown}</Text>}
          <Text size="sm" c="dimmed">
            {sizeText(size)}
          </Text>
        </Stack>
        <Group gap="xs" wrap="nowrap" style={{ flexShrink: 0 }}>
          <Badge variant="default" miw="max-content" role={status === 'sending' ? undefined : 'status'}>
            {status === 'sending' ? `${percent} %` : texts.uploadStates[status]}
          </Badge>
          {isOpen && (
            <ActionIcon aria-label={texts.stop(shown)} onClick={onStop}>
              <IconX size={18} />
            </ActionIcon>
          )}
          {(status === 'failed' || status === 'stopped') && (
            <ActionIcon aria-label={texts.retry(shown)} onClick={onRetry}>
              <IconRefresh size={18} />
            </ActionIcon>
          )}
        </Group>
      </Group>
      {status === 'sending' && <Progress value={percent} aria-label={shown} />}
      {error !== undefined && <Text size="sm">{visible(failureOf(error).message)}</Text>}
    </Stack>
  )
}
