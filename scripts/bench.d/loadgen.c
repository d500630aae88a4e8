// loadgen -t host:port|unix:PATH -c CONC -d SECS [-w WARM] [-r RAMP] -b BODYFILE [-u URLPATH] [-s (stream)] [-H 'K: V'] [-P pid,pid,..] [-S start-stagger]
// One thread, epoll, closed loop, keep-alive. Prints one JSON line.
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
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
typedef struct { int fd; int st; size_t so; char hb[8192]; size_t hl; long left; int mode; /*1 CL 2 chunked 3 close*/ int cst; long cleft; char cl[32]; int cll; char lb[65536]; size_t ll; uint64_t t0,first,lastr,lasts; long nev; int done; int status; int reused; uint64_t startat; } conn;
typedef struct { uint64_t *a; size_t n,c; } vec;
static void vpush(vec*v,uint64_t x){ if(v->n==v->c){v->c=v->c?v->c*2:4096;v->a=realloc(v->a,v->c*8);} v->a[v->n++]=x; }
static int cmp(const void*a,const void*b){ uint64_t x=*(uint64_t*)a,y=*(uint64_t*)b; return x<y?-1:x>y; }
static double pct(vec*v,double p){ if(!v->n)return -1; size_t i=(size_t)(p*(v->n-1)+0.5); return v->a[i]/1000.0; }
static uint64_t now_ns(void){ struct timespec t; clock_gettime(CLOCK_MONOTONIC,&t); return t.tv_sec*1000000000ull+t.tv_nsec; }
static int ep,stream; static char*req; static size_t reql; static char*tgt; static vec lat,ttft,dly,gap; static uint64_t T,W0,W1; static long nreq,nerr,nev_all,nev_win,nreq_all,nreconn; static int inwin; static uint64_t bytes_win; static int lasterr;
static int dial(void){ int fd; if(!strncmp(tgt,"unix:",5)){ fd=socket(AF_UNIX,SOCK_STREAM|SOCK_NONBLOCK,0); struct sockaddr_un u={.sun_family=AF_UNIX}; strncpy(u.sun_path,tgt+5,107); if(connect(fd,(void*)&u,sizeof u)&&errno!=EINPROGRESS){lasterr=errno;close(fd);return -1;} }
 else { fd=socket(AF_INET,SOCK_STREAM|SOCK_NONBLOCK,0); char h[64]; strcpy(h,tgt); char*c=strchr(h,':'); *c=0; struct sockaddr_in a={.sin_family=AF_INET,.sin_port=htons(atoi(c+1))}; inet_pton(AF_INET,h,&a.sin_addr); int one=1; setsockopt(fd,IPPROTO_TCP,TCP_NODELAY,&one,4); if(connect(fd,(void*)&a,sizeof a)&&errno!=EINPROGRESS){lasterr=errno;close(fd);return -1;} }
 return fd; }
static void want(conn*c,int out){ struct epoll_event e={.events=EPOLLIN|(out?EPOLLOUT:0),.data.ptr=c}; epoll_ctl(ep,EPOLL_CTL_MOD,c->fd,&e); }
static void push_req(conn*c){ while(c->so<reql){ ssize_t r=send(c->fd,req+c->so,reql-c->so,MSG_NOSIGNAL); if(r<0){ if(errno==EAGAIN||errno==ENOTCONN||errno==EINPROGRESS){want(c,1);} return;} c->so+=r; } want(c,0); }
static void begin(conn*c,int fresh){ if(fresh||c->fd<0){ if(c->fd>=0)close(c->fd); c->fd=dial(); c->reused=0; if(c->fd<0){nerr++;c->st=9;c->startat=now_ns()+100000000ull;return;} struct epoll_event e={.events=EPOLLIN|EPOLLOUT,.data.ptr=c}; epoll_ctl(ep,EPOLL_CTL_ADD,c->fd,&e);} c->st=1;c->so=0;c->hl=0;c->ll=0;c->nev=0;c->done=0;c->first=c->lastr=c->lasts=0;c->cst=0;c->cll=0;c->t0=now_ns(); if(!fresh) push_req(c); }
static void line(conn*c,char*p,size_t n,uint64_t t){ if(n<6||memcmp(p,"data:",5))return; if(memmem(p,n,"[DONE]",6)){c->done=1;return;} c->nev++; nev_all++; if(inwin)nev_win++; if(!c->first)c->first=t;
 char*m=memmem(p,n,"@T",2); if(m&&m+21<=p+n){ uint64_t s=0; for(int i=0;i<19;i++)s=s*10+(m[2+i]-'0'); if(inwin){ vpush(&dly,t>s?t-s:0); if(c->lasts){ int64_t g=(int64_t)(t-c->lastr)-(int64_t)(s-c->lasts); vpush(&gap,g>0?g:0);} } c->lasts=s; c->lastr=t; } }
static void body(conn*c,char*p,size_t n,uint64_t t){ if(inwin)bytes_win+=n; if(!c->first&&!stream)c->first=t; if(!stream)return; while(n){ char*q=memchr(p,'\n',n); size_t k=q?(size_t)(q-p):n; if(c->ll||!q){ if(c->ll+k>sizeof c->lb)k=sizeof c->lb-c->ll; memcpy(c->lb+c->ll,p,k); c->ll+=k; if(q){ line(c,c->lb,c->ll,t); c->ll=0; } } else line(c,p,k,t); if(!q)break; n-=q+1-p; p=q+1; } }
// returns 1 done, 0 more, -1 error
static int feed(conn*c,char*p,size_t n,uint64_t t){
 if(c->st==1){ size_t k=n; if(c->hl+k>sizeof c->hb-1)k=sizeof c->hb-1-c->hl; memcpy(c->hb+c->hl,p,k); size_t old=c->hl; c->hl+=k; c->hb[c->hl]=0; char*h=memmem(c->hb,c->hl,"\r\n\r\n",4); if(!h)return c->hl>=sizeof c->hb-1?-1:0; size_t used=(h+4-c->hb)-old; *h=0; c->status=atoi(c->hb+9); c->mode=3;c->left=0; char*q=strcasestr(c->hb,"\r\ncontent-length:"); if(q){c->mode=1;c->left=atol(q+17);} q=strcasestr(c->hb,"\r\ntransfer-encoding:"); if(q&&strcasestr(q,"chunked")){c->mode=2;} c->reused=!strcasestr(c->hb,"\r\nconnection: close"); p+=used;n-=used;c->st=2; if(c->mode==1&&c->left==0)return 1; }
 if(c->mode==1){ size_t k=n<(size_t)c->left?n:(size_t)c->left; body(c,p,k,t); c->left-=k; return c->left==0; }
 if(c->mode==3){ body(c,p,n,t); return 0; }
 while(n){ if(c->cst==0){ char ch=*p++;n--; if(ch=='\n'){ c->cl[c->cll]=0; c->cleft=strtol(c->cl,0,16); c->cll=0; c->cst=c->cleft?1:3; } else if(c->cll<31)c->cl[c->cll++]=ch; }
  else if(c->cst==1){ size_t k=n<(size_t)c->cleft?n:(size_t)c->cleft; body(c,p,k,t); p+=k;n-=k;c->cleft-=k; if(!c->cleft)c->cst=2; }
  else if(c->cst==2){ char ch=*p++;n--; if(ch=='\n')c->cst=0; }
  else { char ch=*p++;n--; if(ch=='\n'){ return 1;} } }
 return 0; }
static int pids[64],np; static double clk;
static void cpu(double*u,double*s){ *u=*s=0; for(int i=0;i<np;i++){ char b[1024],f[64]; sprintf(f,"/proc/%d/stat",pids[i]); int fd=open(f,O_RDONLY); if(fd<0)continue; int r=read(fd,b,1023); close(fd); if(r<=0)continue; b[r]=0; char*p=strrchr(b,')'); unsigned long ut=0,st=0; sscanf(p+2,"%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",&ut,&st); *u+=ut/clk; *s+=st/clk; } }
static double rss(void){ double t=0; for(int i=0;i<np;i++){ char b[256],f[64]; sprintf(f,"/proc/%d/statm",pids[i]); int fd=open(f,O_RDONLY); if(fd<0)continue; int r=read(fd,b,255); close(fd); if(r<=0)continue; b[r]=0; long a,x; sscanf(b,"%ld %ld",&a,&x); t+=x*4096.0/1048576; } return t; }
static void core(double*busy){ FILE*f=fopen("/proc/stat","r"); char b[512]; int n; while(fgets(b,512,f)){ unsigned long u,ni,s,id,io,ir,so,stl; if(sscanf(b,"cpu%d %lu %lu %lu %lu %lu %lu %lu %lu",&n,&u,&ni,&s,&id,&io,&ir,&so,&stl)==9&&strncmp(b,"cpu ",4)&&n<2){busy[n]=(u+ni+s+ir+so+stl)/clk;} } fclose(f); }
int main(int ac,char**av){ signal(SIGPIPE,SIG_IGN); clk=sysconf(_SC_CLK_TCK); int conc=1,o; double dur=3,warm=0.5,ramp=0; char*bf=0,*url="/v1/chat/completions",*xh="",*key="mm-bench"; char xhb[512];
 while((o=getopt(ac,av,"t:c:d:w:r:b:u:sH:P:K:"))>0) switch(o){case 't':tgt=optarg;break;case 'c':conc=atoi(optarg);break;case 'd':dur=atof(optarg);break;case 'w':warm=atof(optarg);break;case 'r':ramp=atof(optarg);break;case 'b':bf=optarg;break;case 'u':url=optarg;break;case 's':stream=1;break;case 'K':key=optarg;break;case 'H':snprintf(xhb,512,"%s\r\n",optarg);xh=xhb;break;case 'P':{char*p=strtok(optarg,",");while(p&&np<64){pids[np++]=atoi(p);p=strtok(0,",");}}break;}
 char*bd=0; size_t bl=0; if(bf){FILE*f=fopen(bf,"rb");fseek(f,0,SEEK_END);bl=ftell(f);rewind(f);bd=malloc(bl);if(fread(bd,1,bl,f)!=bl)return 1;fclose(f);}
 req=malloc(bl+2048); if(bf)reql=sprintf(req,"POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: loadgen\r\naccept: */*\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\n%scontent-length: %zu\r\n\r\n",url,key,xh,bl); else reql=sprintf(req,"GET %s HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: */*\r\n%s\r\n",url,xh); if(bl){memcpy(req+reql,bd,bl);reql+=bl;}
 struct rlimit rl={65536,65536}; setrlimit(RLIMIT_NOFILE,&rl); ep=epoll_create1(0); conn*cs=calloc(conc,sizeof*cs); T=now_ns(); W0=T+(uint64_t)((warm+ramp)*1e9); W1=W0+(uint64_t)(dur*1e9);
 for(int i=0;i<conc;i++){cs[i].fd=-1; if(ramp>0){cs[i].st=9;cs[i].startat=T+(uint64_t)(ramp*1e9*i/conc);} else begin(&cs[i],1);}
 struct epoll_event ev[512]; static char buf[1<<18]; double u0=0,s0=0,u1=0,s1=0,cb0[2]={0},cb1[2]={0}; uint64_t tw0=0,tw1=0; struct rusage ru0,ru1; double rs=0;
 for(;;){ uint64_t t=now_ns(); if(!inwin&&!tw0&&t>=W0){inwin=1;tw0=t;cpu(&u0,&s0);core(cb0);getrusage(RUSAGE_SELF,&ru0);} if(t>=W1){tw1=t;cpu(&u1,&s1);core(cb1);getrusage(RUSAGE_SELF,&ru1);rs=rss();break;}
  struct timespec ts={0,5000000}; int k=syscall(SYS_epoll_pwait2,ep,ev,512,&ts,NULL,0);
  { uint64_t tt=now_ns(); static uint64_t nxt; if(tt>nxt){ nxt=tt+2000000; for(int i=0;i<conc;i++) if(cs[i].st==9&&tt>=cs[i].startat){ begin(&cs[i],1);} } }
  for(int i=0;i<k;i++){ conn*c=ev[i].data.ptr; if(c->fd<0)continue; if(ev[i].events&EPOLLOUT){ if(c->so==0)c->t0=now_ns(); push_req(c);} if(!(ev[i].events&(EPOLLIN|EPOLLHUP|EPOLLERR)))continue;
   for(;;){ ssize_t r=recv(c->fd,buf,sizeof buf,0); uint64_t tr=now_ns(); if(r<0&&errno==EAGAIN)break; int res; if(r<=0){ res=(c->st==2&&c->mode==3&&r==0)?1:-1; c->reused=0; if(r<0)lasterr=errno; } else res=feed(c,buf,r,tr);
    if(res==0){ if((size_t)r<sizeof buf)break; else continue; }
    int bad=res<0||c->status!=200||(stream&&!c->done); nreq_all++; if(bad){ if(c->st==1&&r<=0&&c->hl==0&&nreq_all>1){nreconn++; } nerr++; } else if(inwin){ nreq++; vpush(&lat,tr-c->t0); if(c->first)vpush(&ttft,c->first-c->t0); }
    if(bad&&nerr>2000)  { c->st=9; c->startat=tr+50000000ull; close(c->fd); c->fd=-1; break; }
    begin(c,!c->reused||res<0); break; } }
 }
 double d=(tw1-tw0)/1e9; qsort(lat.a,lat.n,8,cmp);qsort(ttft.a,ttft.n,8,cmp);qsort(dly.a,dly.n,8,cmp);qsort(gap.a,gap.n,8,cmp);
 double own=(ru1.ru_utime.tv_sec-ru0.ru_utime.tv_sec)+(ru1.ru_utime.tv_usec-ru0.ru_utime.tv_usec)/1e6+(ru1.ru_stime.tv_sec-ru0.ru_stime.tv_sec)+(ru1.ru_stime.tv_usec-ru0.ru_stime.tv_usec)/1e6;
 printf("{\"secs\":%.3f,\"req\":%ld,\"err\":%ld,\"errno\":%d,\"rps\":%.1f,\"lat_us\":{\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f},\"ttft_us\":{\"p50\":%.1f,\"p99\":%.1f,\"n\":%zu},\"events\":%ld,\"eps\":%.1f,\"mbps\":%.2f,\"delay_us\":{\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f},\"gap_us\":{\"p50\":%.1f,\"p99\":%.1f},\"cpu_u\":%.3f,\"cpu_s\":%.3f,\"rss_mb\":%.1f,\"core_busy\":[%.3f,%.3f],\"client_cpu\":%.3f}\n",d,nreq,nerr,lasterr,nreq/d,pct(&lat,.5),pct(&lat,.9),pct(&lat,.99),pct(&lat,.999),pct(&ttft,.5),pct(&ttft,.99),ttft.n,nev_win,nev_win/d,bytes_win/d/1e6,pct(&dly,.5),pct(&dly,.9),pct(&dly,.99),pct(&dly,.999),pct(&gap,.5),pct(&gap,.99),(u1-u0)/d,(s1-s0)/d,rs,(cb1[0]-cb0[0])/d,(cb1[1]-cb0[1])/d,own/d);
 return 0; }
