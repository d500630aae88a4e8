// Fast OpenAI-like upstream, one thread, epoll, HTTP/1.1 keep-alive.
//   upstream PORT [UDS_PATH]   (PORT 0: only the unix socket)
// POST /v1/chat/completions|/v1/completions : "stream":true -> SSE, else static JSON.
//   body "max_tokens" (or max_completion_tokens) = number of events; "seed" = microseconds between events (0 = flat out).
// Each event is its own HTTP chunk and its own write() (as uvicorn under vLLM does) and carries
// "@T<19-digit CLOCK_MONOTONIC ns>" so that a client on the same machine can compute one-way delay.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
typedef struct conn { int fd; char *rb; size_t rl, rc; char *wb; size_t wl, wo, wc; int streaming; long left; uint64_t next, ivl; int heap_i; int flat_i; int want_out; int dead; } conn;
static int ep; static conn **heap; static int hn, hc; static conn **flat; static int fn, fc;
static conn **grave; static int gn, gc;
static uint64_t now_ns(void){ struct timespec t; clock_gettime(CLOCK_MONOTONIC,&t); return t.tv_sec*1000000000ull+t.tv_nsec; }
static void hswap(int a,int b){ conn*t=heap[a];heap[a]=heap[b];heap[b]=t;heap[a]->heap_i=a;heap[b]->heap_i=b; }
static void hup(int i){ while(i&&heap[(i-1)/2]->next>heap[i]->next){hswap(i,(i-1)/2);i=(i-1)/2;} }
static void hdown(int i){ for(;;){int l=2*i+1,m=i; if(l<hn&&heap[l]->next<heap[m]->next)m=l; if(l+1<hn&&heap[l+1]->next<heap[m]->next)m=l+1; if(m==i)return; hswap(i,m); i=m;} }
static void hpush(conn*c){ if(hn==hc){hc=hc?hc*2:256;heap=realloc(heap,hc*sizeof*heap);} heap[hn]=c;c->heap_i=hn;hup(hn++); }
static void hdel(conn*c){ int i=c->heap_i; if(i<0)return; hn--; if(i!=hn){heap[i]=heap[hn];heap[i]->heap_i=i;hup(i);hdown(heap[i]->heap_i);} c->heap_i=-1; }
static void fpush(conn*c){ if(c->flat_i>=0)return; if(fn==fc){fc=fc?fc*2:256;flat=realloc(flat,fc*sizeof*flat);} flat[fn]=c;c->flat_i=fn++; }
static void fdel(conn*c){ int i=c->flat_i; if(i<0)return; fn--; if(i!=fn){flat[i]=flat[fn];flat[i]->flat_i=i;} c->flat_i=-1; }
static void cclose(conn*c){ if(c->dead)return; c->dead=1; hdel(c); fdel(c); close(c->fd); if(gn==gc){gc=gc?gc*2:64;grave=realloc(grave,gc*sizeof*grave);} grave[gn++]=c; }
static void arm(conn*c,int out){ if(out==c->want_out)return; c->want_out=out; struct epoll_event e={.events=EPOLLIN|(out?EPOLLOUT:0),.data.ptr=c}; epoll_ctl(ep,EPOLL_CTL_MOD,c->fd,&e); }
static void wpend(conn*c,const char*p,size_t n){ if(c->wl+n>c->wc){c->wc=(c->wl+n)*2;c->wb=realloc(c->wb,c->wc);} memcpy(c->wb+c->wl,p,n); c->wl+=n; }
// returns 1 if all went out
static int wr(conn*c,const char*p,size_t n){ if(c->dead)return 0; if(c->wl>c->wo){wpend(c,p,n);return 0;} ssize_t r=send(c->fd,p,n,MSG_NOSIGNAL); if(r<0){ if(errno==EAGAIN)r=0; else {cclose(c);return 0;} } if((size_t)r<n){ c->wl=c->wo=0; wpend(c,p+r,n-r); arm(c,1); return 0;} return 1; }
static char evt[1024]; static size_t evl, evts; static char lastevt[1024]; static size_t lastl;
static const char *HDR="HTTP/1.1 200 OK\r\ndate: Wed, 01 Jan 2025 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
static char jsonresp[4096]; static size_t jsonl; static char modelsresp[4096]; static size_t modelsl; static char okresp[512]; static size_t okl; static char jinfo[1024]; static size_t jinfol;
static void stamp(void){ uint64_t t=now_ns(); char*p=evt+evts+18; for(int i=0;i<19;i++){*p--='0'+t%10;t/=10;} }
static int emit(conn*c){ stamp(); c->left--; if(c->left>0) return wr(c,evt,evl); int r=wr(c,evt,evl); if(!c->dead) r=wr(c,lastevt,lastl); c->streaming=0; return r; }
static long num(const char*b,size_t n,const char*key,long d){ char*p=memmem(b,n,key,strlen(key)); if(!p)return d; p+=strlen(key); const char*e=b+n; while(p<e&&(*p==' '||*p==':'))p++; if(p>=e||*p<'0'||*p>'9')return d; return strtol(p,0,10); }
static int istrue(const char*b,size_t n,const char*key){ char*p=memmem(b,n,key,strlen(key)); if(!p)return 0; p+=strlen(key); const char*e=b+n; while(p<e&&(*p==' '||*p==':'))p++; return e-p>=4&&!memcmp(p,"true",4); }
static void handle(conn*c,const char*path,int post,const char*body,size_t bl){
  if(post&&(strstr(path,"/completions"))){
    if(istrue(body,bl,"\"stream\"")){ long n=num(body,bl,"\"max_tokens\"",-1); if(n<0)n=num(body,bl,"\"max_completion_tokens\"",16); long iv=num(body,bl,"\"seed\"",0); if(n<1)n=1;
      wr(c,HDR,strlen(HDR)); if(c->dead)return; c->streaming=1;c->left=n;c->ivl=iv*1000ull; if(iv==0){fpush(c);} else {c->next=now_ns();hpush(c);} return; }
    wr(c,jsonresp,jsonl); return; }
  if(!strncmp(path,"/v1/models",10)){wr(c,modelsresp,modelsl);return;}
  if(strstr(path,"info")||strstr(path,"version")||strstr(path,"load")){wr(c,jinfo,jinfol);return;}
  wr(c,okresp,okl);
}
static void process(conn*c){
  for(;;){ if(c->dead||c->streaming||c->rl==0)return;
    char*h=memmem(c->rb,c->rl,"\r\n\r\n",4); if(!h)return; size_t hl=h-c->rb+4; *h=0; // terminates header text
    long cl=0; int chunked=0; char*ln=c->rb; int post=!strncmp(ln,"POST",4);
    char*p=strstr(c->rb,"\r\n"); for(;p&&p<h;){ p+=2; if(!strncasecmp(p,"content-length:",15))cl=atol(p+15); else if(!strncasecmp(p,"transfer-encoding:",18)&&strcasestr(p+18,"chunked"))chunked=1; else if(!strncasecmp(p,"expect:",7)&&!c->wl){ } p=strstr(p,"\r\n"); }
    char path[256]; const char*s=strchr(c->rb,' '); size_t i=0; if(s){s++; while(*s&&*s!=' '&&*s!='\r'&&i<255)path[i++]=*s++;} path[i]=0;
    *h='\r';
    if(!chunked){ if(c->rl<hl+cl){ return;} handle(c,path,post,c->rb+hl,cl); size_t used=hl+cl; if(c->dead)return; memmove(c->rb,c->rb+used,c->rl-used); c->rl-=used; }
    else { size_t o=hl; size_t out=0; char*tmp=malloc(c->rl); int done=0; while(1){ char*e=memmem(c->rb+o,c->rl-o,"\r\n",2); if(!e)break; long n=strtol(c->rb+o,0,16); size_t st=e-c->rb+2; if(n==0){ if(c->rl<st+2)break; o=st+2; done=1;break;} if(c->rl<st+n+2)break; memcpy(tmp+out,c->rb+st,n); out+=n; o=st+n+2; }
      if(!done){free(tmp);return;} handle(c,path,post,tmp,out); free(tmp); if(c->dead)return; memmove(c->rb,c->rb+o,c->rl-o); c->rl-=o; }
  } }
static int lsn(int fd,struct sockaddr*a,socklen_t l){ int one=1; setsockopt(fd,SOL_SOCKET,SO_REUSEADDR,&one,4); if(bind(fd,a,l)){perror("bind");exit(1);} listen(fd,4096); fcntl(fd,F_SETFL,O_NONBLOCK); return fd; }
int main(int ac,char**av){ signal(SIGPIPE,SIG_IGN); ep=epoll_create1(0); int port=atoi(av[1]);
  char pl[900]; int n=snprintf(pl,sizeof pl,"data: {\"id\":\"chatcmpl-8f1d2c3b4a59687786950a1b2c3d4e5f\",\"object\":\"chat.completion.chunk\",\"created\":1735689600,\"model\":\"m1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"@T0000000000000000000\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n");
  evl=sprintf(evt,"%x\r\n%s\r\n",n,pl); evts=strstr(evt,"@T")-evt+2;
  char fin[900]; int f=sprintf(fin,"data: {\"id\":\"chatcmpl-8f1d2c3b4a59687786950a1b2c3d4e5f\",\"object\":\"chat.completion.chunk\",\"created\":1735689600,\"model\":\"m1\",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n");
  lastl=sprintf(lastevt,"%x\r\n%s\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",f,fin);
  const char*j="{\"id\":\"chatcmpl-8f1d2c3b4a59687786950a1b2c3d4e5f\",\"object\":\"chat.completion\",\"created\":1735689600,\"model\":\"m1\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog.\",\"refusal\":null,\"tool_calls\":[],\"reasoning_content\":null},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":12,\"total_tokens\":44,\"completion_tokens\":32,\"prompt_tokens_details\":null},\"prompt_logprobs\":null}";
  jsonl=sprintf(jsonresp,"HTTP/1.1 200 OK\r\ndate: Wed, 01 Jan 2025 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: %zu\r\ncontent-type: application/json\r\n\r\n%s",strlen(j),j);
  const char*m="{\"object\":\"list\",\"data\":[{\"id\":\"m1\",\"object\":\"model\",\"created\":1735689600,\"owned_by\":\"vllm\",\"root\":\"m1\",\"parent\":null,\"max_model_len\":32768,\"permission\":[]}]}";
  modelsl=sprintf(modelsresp,"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: %zu\r\ncontent-type: application/json\r\n\r\n%s",strlen(m),m);
  okl=sprintf(okresp,"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: 0\r\n\r\n");
  const char*inf="{\"model_path\":\"m1\",\"served_model_name\":\"m1\",\"is_generation\":true,\"version\":\"0.32.0\"}"; jinfol=sprintf(jinfo,"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: %zu\r\ncontent-type: application/json\r\n\r\n%s",strlen(inf),inf);
  int ls[2]={-1,-1}; struct sockaddr_in a={.sin_family=AF_INET,.sin_port=htons(port)}; inet_pton(AF_INET,"127.0.0.1",&a.sin_addr); if(port)ls[0]=lsn(socket(AF_INET,SOCK_STREAM,0),(void*)&a,sizeof a);
  if(ac>2){ struct sockaddr_un u={.sun_family=AF_UNIX}; strncpy(u.sun_path,av[2],107); unlink(av[2]); ls[1]=lsn(socket(AF_UNIX,SOCK_STREAM,0),(void*)&u,sizeof u); }
  for(int i=0;i<2;i++) if(ls[i]>=0){ struct epoll_event e={.events=EPOLLIN,.data.u64=i}; epoll_ctl(ep,EPOLL_CTL_ADD,ls[i],&e); }
  struct epoll_event ev[256]; static char big[1<<18];
  for(;;){ struct timespec ts={0,0},*tp=0; if(fn){tp=&ts;} else if(hn){ uint64_t t=now_ns(); uint64_t d=heap[0]->next>t?heap[0]->next-t:0; ts.tv_sec=d/1000000000ull; ts.tv_nsec=d%1000000000ull; tp=&ts; }
    int k=syscall(SYS_epoll_pwait2,ep,ev,256,tp,NULL,0);
    for(int i=0;i<k;i++){ if(ev[i].data.u64<2){ for(;;){ int fd=accept4(ls[ev[i].data.u64],0,0,SOCK_NONBLOCK); if(fd<0)break; int one=1; setsockopt(fd,IPPROTO_TCP,TCP_NODELAY,&one,4); conn*c=calloc(1,sizeof*c); c->fd=fd;c->heap_i=c->flat_i=-1; struct epoll_event e={.events=EPOLLIN,.data.ptr=c}; epoll_ctl(ep,EPOLL_CTL_ADD,fd,&e);} continue; }
      conn*c=ev[i].data.ptr; if(c->dead)continue;
      if(ev[i].events&EPOLLOUT){ ssize_t r=send(c->fd,c->wb+c->wo,c->wl-c->wo,MSG_NOSIGNAL); if(r<0&&errno!=EAGAIN){cclose(c);continue;} if(r>0)c->wo+=r; if(c->wo==c->wl){c->wo=c->wl=0;arm(c,0); if(c->streaming&&c->ivl==0)fpush(c); else if(!c->streaming)process(c);} }
      if(!c->dead&&ev[i].events&(EPOLLIN|EPOLLHUP|EPOLLERR)){ for(;;){ ssize_t r=recv(c->fd,big,sizeof big,0); if(r==0){cclose(c);break;} if(r<0){ if(errno!=EAGAIN)cclose(c); break;} if(c->rl+r>c->rc){c->rc=(c->rl+r)*2+4096;c->rb=realloc(c->rb,c->rc+1);} memcpy(c->rb+c->rl,big,r); c->rl+=r; if((size_t)r<sizeof big)break; } if(!c->dead)process(c); }
    }
    for(int i=0;i<fn;){ conn*c=flat[i]; int ok=1; for(int q=0;q<4&&ok&&c->streaming;q++) ok=emit(c); if(c->dead)continue; if(!c->streaming){fdel(c); if(c->wl==c->wo)process(c);continue;} if(!ok){fdel(c);continue;} i++; }
    if(hn){ uint64_t t=now_ns(); while(hn&&heap[0]->next<=t){ conn*c=heap[0]; c->next+=c->ivl; emit(c); if(c->dead)continue; if(!c->streaming){hdel(c); if(c->wl==c->wo)process(c);} else hdown(0); } }
    for(int i=0;i<gn;i++){free(grave[i]->rb);free(grave[i]->wb);free(grave[i]);} gn=0;
  } }
